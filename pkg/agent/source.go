// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"

	"github.com/shunt-lb/shunt/pkg/config"
	"github.com/shunt-lb/shunt/pkg/events"
	"github.com/shunt-lb/shunt/pkg/source"
	"github.com/shunt-lb/shunt/pkg/source/kube"
	"github.com/shunt-lb/shunt/pkg/source/manifests"
	"github.com/shunt-lb/shunt/pkg/version"
)

// newSource returns where Services come from, and who tells users of objects at fault there: Events of the API server,
// or without one the log alone.
func newSource(cfg *config.Config, log *slog.Logger) (source.Source, *events.Recorder, error) {
	options := events.Options{Node: cfg.NodeName, Log: log}
	if cfg.Manifests != "" {
		return manifests.New(cfg.Manifests, cfg.NodeName, manifests.DefaultTiming()), events.New(options), nil
	}
	client, err := kube.NewClient(kube.Config{
		Kubeconfig:         cfg.Kubeconfig,
		APIServers:         cfg.APIServers,
		ContentType:        cfg.KubeAPIContentType,
		AcceptContentTypes: cfg.KubeAPIAcceptContentTypes,
		QPS:                cfg.KubeAPIQPS,
		Burst:              int(cfg.KubeAPIBurst),
		Version:            version.Get().Version,
	})
	if err != nil {
		return nil, nil, err
	}
	log.Info("API servers, tried in this order", "servers", client.Servers())
	options.Sink = client
	return withoutExternalIPs(kube.New(client, cfg.NodeName, kube.DefaultTiming()), cfg), events.New(options), nil
}

// withoutExternalIPs applies the feature gate AllowServiceExternalIPs: without it spec.externalIPs counts as empty.
func withoutExternalIPs(from source.Source, cfg *config.Config) source.Source {
	if cfg.AllowServiceExternalIPs {
		return from
	}
	return filteredSource{from, func(e source.Event) source.Event {
		set, ok := e.(source.SetService)
		if !ok || len(set.Service.ExternalIPs) == 0 {
			return e
		}
		service := *set.Service // events are shared: the source's object stays as it is
		service.ExternalIPs = nil
		set.Service = &service
		return set
	}}
}

// withServiceRanges tells the packet path which ranges ClusterIPs are of.
func withServiceRanges(from source.Source, packets *packetPath) source.Source {
	if packets == nil {
		return from
	}
	return filteredSource{from, func(e source.Event) source.Event {
		if set, ok := e.(source.SetServiceCIDRs); ok {
			packets.setServiceRanges(set.CIDRs)
		}
		return e
	}}
}

// filteredSource passes each event through a function.
type filteredSource struct {
	source.Source
	filter func(source.Event) source.Event
}

// Run implements source.Source.
func (f filteredSource) Run(ctx context.Context, out chan<- source.Event) error {
	unfiltered := make(chan source.Event)
	ended := make(chan error, 1)
	go func() { ended <- f.Source.Run(ctx, unfiltered) }()
	for {
		select {
		case err := <-ended:
			return err
		case e := <-unfiltered:
			source.Send(ctx, out, f.pass(e))
		}
	}
}

// pass filters an event, or each one of a batch.
func (f filteredSource) pass(e source.Event) source.Event {
	batch, ok := e.(source.Batch)
	if !ok {
		return f.filter(e)
	}
	filtered := make(source.Batch, len(batch))
	for i, e := range batch {
		filtered[i] = f.pass(e)
	}
	return filtered
}
