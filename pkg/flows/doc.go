// SPDX-License-Identifier: Apache-2.0

// Package flows ends flows that can no longer work: connected UDP sockets whose backend has left its service port.
// The kernel gives such a socket no sign that its peer is gone, and no hook sees its sends; kube-proxy's counterpart is
// the deletion of the flow from the connection tracking table. An ended socket's owner gets ECONNABORTED once, and a
// resolver then opens a new one, which is translated anew.
//
// An iterator (bpf/stale.bpf.c) lists the sockets of all network namespaces; they are ended by SOCK_DESTROY (Linux 4.5,
// CONFIG_INET_DIAG_DESTROY), which works within one namespace, so each is entered. TCP is never touched.
package flows
