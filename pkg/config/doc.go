// SPDX-License-Identifier: Apache-2.0

// Package config is the agent's configuration: one Config, made from defaults, a file, and flags, each overriding the
// one before it. The file is a ShuntConfiguration or kube-proxy's own KubeProxyConfiguration; every field of the
// latter is honoured, named as having no meaning here, or refused (see positions).
//
// The package reads files and the environment and decides nothing else: what a node-port keyword covers, or how much
// memory there is, is decided by those who use the Config.
package config
