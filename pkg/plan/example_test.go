// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"net/netip"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/plan"
)

// A web Service with a ClusterIP and a node port gets its first backend, then another instead, and then goes.
func Example() {
	state := plan.New(plan.Limits{Slots: 1024, Services: 64})
	web := model.ServiceName{Namespace: "shop", Name: "web"}

	show("the Service appears", state, desire(web, "10.244.1.5"))
	show("its endpoint is replaced", state, desire(web, "10.244.2.7"))
	show("the Service goes", state, plan.Change{Service: web})
	// Output:
	// # the Service appears
	// reserve backend ids below 4098
	// put name 1 = shop/web:http/TCP (IPv4)
	// put backend 1 = 10.244.1.5:8080 of service 1, in cluster set
	// put run 0+1 = backends [1], the cluster set of service 1
	// put address 10.96.0.10 = ClusterIP
	// put frontend 0.0.0.0:30080/TCP = service 1, node port, internal cluster run 0+1, external drop, policy local
	// put frontend 10.96.0.10:80/TCP = service 1, ClusterIP, internal cluster run 0+1, external cluster run 0+1
	// # its endpoint is replaced
	// put backend 2 = 10.244.2.7:8080 of service 1, in cluster set
	// put run 1+1 = backends [2], the cluster set of service 1
	// put frontend 0.0.0.0:30080/TCP = service 1, node port, internal cluster run 1+1, external drop, policy local
	// put frontend 10.96.0.10:80/TCP = service 1, ClusterIP, internal cluster run 1+1, external cluster run 1+1
	// put backend 1 = 10.244.1.5:8080 of service 1, in no set
	// retire run 0+1 of service 1
	// # a grace period later
	// delete backend 1 of service 1
	// free run 0+1 of service 1
	// # the Service goes
	// delete frontend 0.0.0.0:30080/TCP of service 1
	// delete frontend 10.96.0.10:80/TCP of service 1
	// delete address 10.96.0.10
	// retire service 1
	// # a grace period later
	// delete backend 2 of service 1
	// free run 1+1 of service 1
	// reset counters of service 1
	// delete name of service 1
}

// desire is the Service with one endpoint on another node. Its node port has externalTrafficPolicy Local, and so
// nothing for clients outside the cluster.
func desire(service model.ServiceName, endpoint string) plan.Change {
	local := model.Target{Local: true, Drop: true}
	key := func(address string, port uint16) model.FrontendKey {
		return model.FrontendKey{Address: netip.MustParseAddr(address), Port: port, Protocol: model.TCP}
	}
	return plan.Change{Service: service, Ports: []model.ServicePort{{
		Name:     model.ServicePortName{ServiceName: service, Port: "http", Protocol: model.TCP, Family: model.IPv4},
		Backends: []model.Backend{{Address: netip.MustParseAddr(endpoint), Port: 8080, Cluster: true}},
		Frontends: []model.Frontend{
			{FrontendKey: key("0.0.0.0", 30080), Kind: model.NodePort, PolicyLocal: true, External: local},
			{FrontendKey: key("10.96.0.10", 80), Kind: model.ClusterIP},
		},
	}}}
}

// show plans a change and pretends to execute the plan, and what follows a grace period later.
func show(title string, state *plan.State, change plan.Change) {
	operations, _ := state.Plan([]plan.Change{change})
	pretend(title, state, operations)
	pretend("a grace period later", state, state.Collect(state.TakeRetired()))
}

func pretend(title string, state *plan.State, operations []plan.Operation) {
	if len(operations) == 0 {
		return
	}
	fmt.Println("#", title)
	for _, o := range operations {
		fmt.Println(o)
		state.Applied(o)
	}
}
