// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/shunt-lb/shunt/pkg/loader"
	"github.com/shunt-lb/shunt/pkg/maps"
	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
	"github.com/shunt-lb/shunt/pkg/writer"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// programRequest makes a process program the maps as the agent does, and die on the way.
type programRequest struct {
	BPFFS    string           `json:"bpffs"`
	Services []programService `json:"services"`
	// KillAt is the number of elements written or deleted after which the process kills itself; 0: it lives.
	KillAt int `json:"killAt"`
}

// programService is one Service with one TCP port 80.
type programService struct {
	Name     string           `json:"name"`
	Address  netip.Addr       `json:"address"`
	Backends []netip.AddrPort `json:"backends"`
}

// programResult says how many elements were written or deleted.
type programResult struct {
	Elements int `json:"elements"`
}

func programOperations() process.Operations {
	return process.Operations{"program": process.Typed(program)}
}

func program(in programRequest) (programResult, error) {
	directory, err := loader.Lock(in.BPFFS)
	if err != nil {
		return programResult{}, err
	}
	defer directory.Close()
	kernel, err := maps.Open(directory.Path, maps.Options{})
	if err != nil {
		return programResult{}, err
	}
	defer kernel.Close()
	state, err := writer.ReadBack(kernel, writer.LimitsOf(kernel))
	if err != nil {
		return programResult{}, err
	}
	dying := &mortal{Kernel: kernel, killAt: in.KillAt}
	w := writer.New(dying, state, writer.Options{Grace: 1})
	cluster := desire(in.Services)
	if err := w.Write(changes(cluster)).Err(); err != nil {
		return programResult{}, err
	}
	if err := errors.Join(w.Prune(cluster.Has).Err(), collectAll(w)); err != nil {
		return programResult{}, err
	}
	return programResult{Elements: dying.done}, nil
}

// desire is the model's answer to the Services.
func desire(services []programService) *model.Cluster {
	cluster := model.New(model.Config{Node: model.Node{Name: "node-1"}})
	for _, s := range services {
		setService(cluster, s)
	}
	return cluster
}

func setService(cluster *model.Cluster, s programService) {
	name := model.ServiceName{Namespace: "default", Name: s.Name}
	cluster.SetService(&model.Service{
		ServiceName: name, ClusterIPs: []netip.Addr{s.Address}, Ports: []model.Port{{Protocol: model.TCP, Port: 80}},
	})
	cluster.SetSlice(endpointSlice(name, s.Backends))
}

func endpointSlice(name model.ServiceName, backends []netip.AddrPort) *model.EndpointSlice {
	slice := &model.EndpointSlice{
		SliceName: model.SliceName(name), Service: name, Family: model.IPv4,
		Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
	}
	for _, backend := range backends {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Address: backend.Addr(), Ready: true, Serving: true})
	}
	return slice
}

func changes(cluster *model.Cluster) []plan.Change {
	var changes []plan.Change
	for _, name := range cluster.TakeDirty() {
		changes = append(changes, plan.Change{Service: name, Ports: cluster.Desired(name)})
	}
	return changes
}

// collectAll removes what waits for the end of its grace, which is a nanosecond here.
func collectAll(w *writer.Writer) error {
	for range 1000 {
		if _, waiting := w.Due(); !waiting {
			return nil
		}
		if err := w.Collect().Err(); err != nil {
			return err
		}
	}
	return fmt.Errorf("collect: something still waits")
}

// mortal is a Writer over the kernel that writes element by element and ends its process by SIGKILL between two.
type mortal struct {
	*maps.Kernel
	killAt, done int
}

// element counts one element that was written.
func (m *mortal) element(count int, err error) (int, error) {
	m.done++
	if m.done == m.killAt {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	return count, err
}

// each writes a batch one by one.
func each(length int, write func(i int) (int, error)) (int, error) {
	for i := range length {
		if _, err := write(i); err != nil {
			return i, err
		}
	}
	return length, nil
}

func (m *mortal) PutServices(keys []maps.Frontend, values []maps.Service) (int, error) {
	return each(len(keys), func(i int) (int, error) {
		return m.element(m.Kernel.PutServices(keys[i:i+1], values[i:i+1]))
	})
}

func (m *mortal) DeleteServices(keys []maps.Frontend) (int, error) {
	return each(len(keys), func(i int) (int, error) { return m.element(m.Kernel.DeleteServices(keys[i : i+1])) })
}

func (m *mortal) PutBackends(backends []maps.Backend) (int, error) {
	return each(len(backends), func(i int) (int, error) { return m.element(m.Kernel.PutBackends(backends[i : i+1])) })
}

func (m *mortal) DeleteBackends(ids []uint32) (int, error) {
	return each(len(ids), func(i int) (int, error) { return m.element(m.Kernel.DeleteBackends(ids[i : i+1])) })
}

func (m *mortal) PutSlots(base uint32, ids []uint32) error {
	_, err := each(len(ids), func(i int) (int, error) {
		return m.element(1, m.Kernel.PutSlots(base+uint32(i), ids[i:i+1]))
	})
	return err
}

func (m *mortal) PutAddresses(keys []maps.Address, values []maps.AddressFlags) (int, error) {
	return each(len(keys), func(i int) (int, error) {
		return m.element(m.Kernel.PutAddresses(keys[i:i+1], values[i:i+1]))
	})
}

func (m *mortal) DeleteAddresses(keys []maps.Address) (int, error) {
	return each(len(keys), func(i int) (int, error) { return m.element(m.Kernel.DeleteAddresses(keys[i : i+1])) })
}

func (m *mortal) PutServiceNames(ids []uint32, names []maps.ServiceName) (int, error) {
	return each(len(ids), func(i int) (int, error) {
		return m.element(m.Kernel.PutServiceNames(ids[i:i+1], names[i:i+1]))
	})
}

func (m *mortal) DeleteServiceNames(ids []uint32) (int, error) {
	return each(len(ids), func(i int) (int, error) { return m.element(m.Kernel.DeleteServiceNames(ids[i : i+1])) })
}

func (m *mortal) ResetServiceStats(ids []uint32) (int, error) {
	return each(len(ids), func(i int) (int, error) { return m.element(m.Kernel.ResetServiceStats(ids[i : i+1])) })
}

func (m *mortal) PutMeta(meta maps.Meta) error {
	_, err := m.element(1, m.Kernel.PutMeta(meta))
	return err
}
