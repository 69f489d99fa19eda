// SPDX-License-Identifier: Apache-2.0

package maps

// reasons are the words of enum reason of bpf/reason.h, at their numbers.
var reasons = [...]string{
	"no_backend",
	"local_policy_drop",
	"undefined_port",
	"source_range",
	"unsettled",
	"udp_flow_replaced",
	"flow_not_remembered",
	"client_unknown",
	"bind_conflict",
	"bind_refused",
	"trace_lost",
	"malformed",
	"unallocated_address",
	"conntrack_full",
	"conntrack_replaced",
	"conntrack_healed",
	"ports_exhausted",
	"port_replaced",
	"fragment_unknown",
	"no_route",
	"hop_limit",
	"too_big",
	"answer_limited",
	"rewrite_failed",
	"fragment_held",
	"fragment_released",
}

// ReasonWord returns the word of a reason, which is its metric label; empty for a number without a reason.
func ReasonWord(reason int) string {
	if reason < 0 || reason >= len(reasons) {
		return ""
	}
	return reasons[reason]
}
