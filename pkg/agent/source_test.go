// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"testing"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// fixed is a source that sends its events and waits.
type fixed []source.Event

func (f fixed) Run(ctx context.Context, out chan<- source.Event) error {
	for _, e := range f {
		source.Send(ctx, out, e)
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestTheExternalIPsGateReachesTheEventsOfABatch(t *testing.T) {
	service := func() source.Event {
		return source.SetService{Service: &model.Service{ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan source.Event)
	cfg := config.Default()
	cfg.AllowServiceExternalIPs = false
	go withoutExternalIPs(fixed{service(), source.Batch{source.Synced{}, service()}}, &cfg).Run(ctx, events)
	if got := (<-events).(source.SetService); len(got.Service.ExternalIPs) > 0 {
		t.Errorf("an event by itself has external IPs %v", got.Service.ExternalIPs)
	}
	batch := (<-events).(source.Batch)
	if got := batch[1].(source.SetService); len(got.Service.ExternalIPs) > 0 {
		t.Errorf("an event of a batch has external IPs %v", got.Service.ExternalIPs)
	}
	if _, ok := batch[0].(source.Synced); !ok || len(batch) != 2 {
		t.Errorf("the batch is %v, want both events in their order", batch)
	}
}
