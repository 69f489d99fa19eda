// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

const second = time.Second

func TestHealthFollowsTheOldestChangeThatWaits(t *testing.T) {
	// Each step is done, and the answers are asked for, at a time after the start.
	type step struct {
		at             time.Duration
		do             func(*Proxy)
		livez, healthz int
	}
	eligible := func(p *Proxy) { p.SetNode(true) }
	queued := func(f model.Family) func(*Proxy) { return func(p *Proxy) { p.Queued(f) } }
	updated := func(f model.Family) func(*Proxy) { return func(p *Proxy) { p.Updated(f) } }
	nothing := func(*Proxy) {}
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"a node that is not known gets no traffic, and the agent is not restarted for it", []step{
			{0, nothing, 200, 503},
			{0, eligible, 200, 200},
			{second, func(p *Proxy) { p.SetNode(false) }, 200, 503},
		}},
		{"nothing reported is healthy for ever", []step{{0, eligible, 200, 200}, {9999 * second, nothing, 200, 200}}},
		{"without a waiting change it is healthy for ever", []step{
			{0, eligible, 200, 200}, {0, updated(4), 200, 200}, {9999 * second, nothing, 200, 200},
		}},
		{"a change may wait for less than twice the sync period", []step{
			{0, eligible, 200, 200}, {0, updated(4), 200, 200}, {10 * second, queued(4), 200, 200},
			{69*second + 999*time.Millisecond, nothing, 200, 200}, {70 * second, nothing, 503, 503},
			{71 * second, updated(4), 200, 200},
		}},
		{"the oldest change counts", []step{
			{0, eligible, 200, 200}, {0, queued(4), 200, 200}, {59 * second, queued(4), 200, 200},
			{60 * second, nothing, 503, 503},
		}},
		{"success ends the waiting of all changes before", []step{
			{0, eligible, 200, 200}, {0, queued(4), 200, 200}, {50 * second, updated(4), 200, 200},
			{60 * second, nothing, 200, 200}, {61 * second, queued(4), 200, 200}, {121 * second, nothing, 503, 503},
		}},
		{"one family's success says nothing about the other", []step{
			{0, eligible, 200, 200}, {0, queued(6), 200, 200}, {60 * second, updated(4), 503, 503},
			{61 * second, updated(6), 200, 200},
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			now := start
			p := NewProxy(ProxyOptions{SyncPeriod: 30 * second, Now: func() time.Time { return now }})
			for i, step := range row.steps {
				now = start.Add(step.at)
				step.do(p)
				livez, healthz := get(p, "/livez").Code, get(p, "/healthz").Code
				if livez != step.livez || healthz != step.healthz {
					t.Errorf("step %d: livez %d, healthz %d; want %d, %d", i, livez, healthz, step.livez, step.healthz)
				}
				if p.Healthy() != (step.livez == 200) {
					t.Errorf("step %d: Healthy = %t", i, p.Healthy())
				}
			}
		})
	}
}

func get(p *Proxy, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestTheBodyNamesTheFamiliesAndTheirTimes(t *testing.T) {
	now := time.Unix(1000, 0).UTC()
	p := NewProxy(ProxyOptions{SyncPeriod: 30 * second, Now: func() time.Time { return now }})
	p.Updated(model.IPv4)
	now = now.Add(second)
	p.Updated(model.IPv6)
	p.Queued(model.IPv4)
	now = now.Add(60 * second)

	for _, row := range []struct {
		path     string
		healthy  func()
		last     time.Time
		eligible any
		v4       bool
	}{
		{"/livez", func() {}, time.Unix(1001, 0), nil, false},
		{"/healthz", func() {}, time.Unix(1001, 0), false, false},
		{"/healthz", func() { p.Updated(model.IPv4); p.SetNode(true) }, now, true, true},
	} {
		row.healthy()
		answer := get(p, row.path)
		if got := answer.Header(); got.Get("Content-Type") != "application/json" ||
			got.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", row.path, got)
		}
		var body struct {
			LastUpdated, CurrentTime time.Time
			NodeEligible             any
			Healthy                  bool
			Status                   map[string]struct {
				LastUpdated time.Time
				Healthy     bool
			}
		}
		if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %v in %s", row.path, err, answer.Body)
		}
		if !body.LastUpdated.Equal(row.last) || !body.CurrentTime.Equal(now) || body.Healthy != row.v4 ||
			body.NodeEligible != row.eligible {
			t.Errorf("%s: body %s", row.path, answer.Body)
		}
		if v4, v6 := body.Status["IPv4"], body.Status["IPv6"]; v4.Healthy != row.v4 || !v6.Healthy ||
			!v6.LastUpdated.Equal(time.Unix(1001, 0)) || len(body.Status) != 2 {
			t.Errorf("%s: families %s", row.path, answer.Body)
		}
	}
}

func TestReadyAfterTheFirstFullSync(t *testing.T) {
	p := NewProxy(ProxyOptions{SyncPeriod: 30 * second})
	if code := get(p, "/readyz").Code; code != 503 {
		t.Errorf("before: %d", code)
	}
	p.SetReady()
	if code := get(p, "/readyz").Code; code != 200 {
		t.Errorf("after: %d", code)
	}
}

func TestEachAnswerIsCounted(t *testing.T) {
	type answer struct {
		path string
		code int
	}
	var got []answer
	p := NewProxy(ProxyOptions{SyncPeriod: 30 * second,
		Answered: func(path string, code int) { got = append(got, answer{path, code}) }})
	for _, path := range []string{"/livez", "/healthz", "/readyz", "/nothing"} {
		get(p, path)
	}
	if want := []answer{{"/livez", 200}, {"/healthz", 503}, {"/readyz", 503}}; !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
}
