// SPDX-License-Identifier: Apache-2.0

// Package manifests is the source for a node without an API server: a directory of YAML and JSON files with Services,
// EndpointSlices, the Node and ServiceCIDRs, watched for changes.
//
// It stands in for the API server, so it does that server's work: it decodes strictly, fills in the defaults and
// refuses what the server would refuse. What it cannot do is allocate: ClusterIPs and node ports must be given.
//
// # What is read
//
// The files *.yaml, *.yml and *.json of the directory itself (symbolic links are followed; subdirectories and names
// that begin with a dot are not read). A file holds any number of documents, a document one object or a list of them.
// Another kind of object is reported and ignored.
//
// # Rules
//
//   - One bad document blocks nothing else. It is reported with its file, number and field; the good documents of its
//     file are applied, and nothing that the file defined before goes away until the file is good again.
//   - The same holds for a file that cannot be read, and for the whole directory: when it disappears, its last good
//     state stays in force until it is back.
//   - An object that is defined twice is taken from the first file by name, in it from the first document; the others
//     are reported. When the first goes, the next takes its place at once.
//   - A file that has not changed is not parsed again.
//   - The decoded Kubernetes objects are dropped as soon as they are converted; what is kept is what was sent.
//
// One goroutine, that of Run, does all of it; decoding alone is spread over the processors.
package manifests
