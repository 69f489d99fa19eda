// SPDX-License-Identifier: Apache-2.0

// Package agent proves `shunt agent` as a whole: the real command on real manifests on a node of the lab, and real
// sockets in its pods.
package agent

import (
	"testing"

	"github.com/shunt-lb/shunt/test/agentlab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

const (
	tcp   = process.TCP
	udp   = process.UDP
	mptcp = process.MPTCP
)

func TestMain(m *testing.M) { agentlab.Main(m, programOperations()) }
