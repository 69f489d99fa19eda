// SPDX-License-Identifier: Apache-2.0

// Package lab makes Kubernetes nodes, pods and outside clients on one Linux machine, from network namespaces, veth
// pairs and cgroups, with system calls and netlink only: no external program runs. The kernel tests and `shunt demo`
// stand on it.
//
//	                    wire (a bridge in a namespace of its own)
//	172.20.0.10 ┌──────────┬───────┴──────┐ 172.20.0.100
//	       node-1        node-2          client
//	10.244.1.1 ┌┴─────┐
//	        pod-1    pod-2               each pod: own namespace, own cgroup below its node's
//
// What a lab guarantees:
//   - No namespace has a route or a device that leads out of the lab: a test packet cannot leave.
//   - Nothing is attached to the machine's root cgroup, and none of its interfaces, addresses or settings is touched.
//   - Names are unique per run, so labs run beside each other.
//   - Nothing remains: processes, namespaces, cgroups, mounts and files go when the lab is closed, and also when the
//     program that made it fails, panics, is interrupted or is killed. A janitor process, in a session of its own, sees
//     the end of its maker and cleans. Should the janitor be killed as well, the next lab removes what it finds of runs
//     whose process is gone.
//
// # Using it in a test
//
//	func TestMain(m *testing.M) {
//		lab.Main() // the test binary runs itself as the processes of pods
//		os.Exit(m.Run())
//	}
//
//	func TestPodReachesPod(t *testing.T) {
//		l := lab.New(t)
//		node := l.Node(lab.NodeOptions{})
//		server := node.Pod(lab.PodOptions{Name: "web"}).Process()
//		client := node.Pod(lab.PodOptions{}).Process()
//		address := server.Listen("tcp", netip.AddrPortFrom(server.Address4, 8080), "web")
//		connection := client.Dial("tcp", address)
//		if reply := connection.Exchange("hello"); reply.Server != "web" { … }
//	}
//
// The programs of a node are attached to node.CgroupRoot and pinned below node.BPFFS; they see the node's own
// processes ([Node.Process], [Node.Start]) and those of its pods ([Pod.Process]), and not the clients' ([Lab.Client]).
// Code that opens sockets must run in such a process, because cgroup programs look at the cgroup of the process that
// makes the socket; [Namespace.Do] enters the network namespace alone and is meant for netlink and /proc/sys.
//
// A packet to an address without a route is answered with an ICMP error, and a connect with ENETUNREACH, but the kernel
// answers five such packets of one sender in a row and then one a second: who polls sees timeouts between.
//
// Everything that a test cannot go on without fails the test at once, as t.Fatal does, so the methods have no error
// results; what a test asks about (a refused connect, a lost datagram) is in the results. [Run] offers the same to a
// program without testing.TB.
package lab
