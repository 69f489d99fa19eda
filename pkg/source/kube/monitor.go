// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shunt-lb/shunt/pkg/source"
)

// monitor reports how the requests for one resource go: a failure when it begins, again while it lasts, and its end.
type monitor struct {
	resource *resource
	send     func(source.Event)
	repeat   time.Duration
	now      func() time.Time
	// forbidden is called when the API server refuses access; nil where nothing waits for the resource.
	forbidden func()

	mu sync.Mutex
	// reason is that of the problem reported last, empty when all is well; reported is when that was.
	reason   string
	reported time.Time
}

func (m *monitor) origin() string { return "watch " + m.resource.name }

// succeeded implements observer.
func (m *monitor) succeeded(context.Context) {
	m.mu.Lock()
	failing := m.reason != ""
	m.reason = ""
	m.mu.Unlock()
	if failing {
		m.send(source.SetProblems{Origin: m.origin()})
	}
}

// failed implements observer.
func (m *monitor) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	p := m.problem(verb, err)
	if p == nil {
		m.succeeded(ctx)
		return
	}
	if p.Reason == source.ReasonForbidden && m.forbidden != nil {
		m.forbidden()
	}
	m.mu.Lock()
	report := p.Reason != m.reason || m.now().Sub(m.reported) >= m.repeat
	if report {
		m.reason, m.reported = p.Reason, m.now()
	}
	m.mu.Unlock()
	if report {
		m.send(source.SetProblems{Origin: m.origin(), Problems: []source.Problem{*p}})
	}
}

// problem says what an error means for the user. A ServiceCIDR API that a server does not have is no problem.
func (m *monitor) problem(verb string, err error) *source.Problem {
	const effect = "the last state stays in force"
	p := &source.Problem{Where: m.origin(), Reason: source.ReasonServerFailed, Effect: effect}
	switch {
	case apierrors.IsForbidden(err):
		p.Reason = source.ReasonForbidden
		p.Message = fmt.Sprintf("the API server forbids it: %v; grant the verbs list and watch on the resource %s of the API group %q "+
			"to shunt's user (its ClusterRole)", err, m.resource.name, m.resource.group)
	case apierrors.IsUnauthorized(err):
		p.Reason = source.ReasonForbidden
		p.Message = fmt.Sprintf("the API server does not accept the credentials: %v; check the kubeconfig or the service account", err)
	case apierrors.IsNotFound(err):
		if m.resource.name == "servicecidrs" {
			return nil
		}
		p.Reason = source.ReasonNoSuchResource
		p.Message = fmt.Sprintf("the API server does not serve %s of the API group %q: %v; is it a Kubernetes API server of 1.21 or later?",
			m.resource.name, m.resource.group, err)
	default:
		p.Message = fmt.Sprintf("cannot %s: %v", verb, short(err))
	}
	return p
}

// short drops the request's URL from an error: it is long and says nothing that the resource does not.
func short(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}
