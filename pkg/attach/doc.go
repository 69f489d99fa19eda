// SPDX-License-Identifier: Apache-2.0

// Package attach puts loaded programs on their hooks and takes them off. A program stands on the root of the cgroup v2
// hierarchy by a link that is pinned as <bpffs>/shunt/links/<program>, so that it works on without the agent; a new
// version replaces it in one step, with no connect in between that meets neither. The packet programs
// are on the node's devices, by TCX links that are pinned in links/tc or, on kernels without, by filters of clsact.
package attach
