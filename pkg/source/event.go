// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/shunt-lb/shunt/pkg/model"
)

// Source delivers events until ctx ends. It returns ctx's error then, or earlier what makes going on impossible (a
// kubeconfig that cannot be read); what may heal by itself is reported as a Problem and retried.
type Source interface {
	Run(ctx context.Context, events chan<- Event) error
}

// Event is one of the types below.
type Event interface{ event() }

// SetService says that a Service exists and what it is now.
type SetService struct {
	Service *model.Service
	// UID is the object's UID, which Kubernetes Events about it must name; empty in a manifest without one.
	UID      string
	Problems []Problem
}

// DeleteService says that a Service is gone, or exists and is not to be translated (then Problems may say why).
type DeleteService struct {
	Name     model.ServiceName
	Problems []Problem
}

// SetSlice says that an EndpointSlice exists and what it is now.
type SetSlice struct {
	Slice *model.EndpointSlice
	UID   string
	// Triggered is when the change of a Pod or Service happened that led to this state of the slice (annotation
	// endpoints.kubernetes.io/last-change-trigger-time), zero when the object does not say: the start of the
	// programming latency.
	Triggered time.Time
	Problems  []Problem
}

// DeleteSlice says that an EndpointSlice is gone or has no meaning for this node.
type DeleteSlice struct {
	Name     model.SliceName
	Problems []Problem
}

// SetNode says what this node's own Node object is now.
type SetNode struct {
	Node     *Node
	Problems []Problem
}

// DeleteNode says that no Node of this node's name exists (any more).
type DeleteNode struct {
	Name string
}

// SetServiceCIDRs gives the ranges from which the cluster allocates ClusterIPs: the whole list each time, sorted, each
// range once.
type SetServiceCIDRs struct {
	CIDRs    []netip.Prefix
	Problems []Problem
}

// SetProblems replaces the problems of one origin that belong to no single object: a file that cannot be decoded, a
// watch that the API server forbids. An empty list says that all is well there again.
type SetProblems struct {
	Origin   string
	Problems []Problem
}

// Synced says that everything that exists has been delivered once.
type Synced struct{}

// Batch is events that belong together, as they were written together: the consumer applies all before it acts on
// any. Between a Service whose port has a new name and its EndpointSlices that follow, it would have no endpoints.
type Batch []Event

func (SetService) event()      {}
func (DeleteService) event()   {}
func (SetSlice) event()        {}
func (DeleteSlice) event()     {}
func (SetNode) event()         {}
func (DeleteNode) event()      {}
func (SetServiceCIDRs) event() {}
func (SetProblems) event()     {}
func (Synced) event()          {}
func (Batch) event()           {}

// Send delivers e, or gives up when ctx ends. It reports whether e was delivered.
func Send(ctx context.Context, events chan<- Event, e Event) bool {
	select {
	case events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// Node is what the agent needs of its own Node object.
type Node struct {
	model.Node
	UID string
	// Addresses are the node's addresses that parse: the InternalIPs in their order, then the ExternalIPs.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	// Leaving is true when the node is about to go: it has a deletionTimestamp, or the cluster autoscaler's taint
	// ToBeDeletedByClusterAutoscaler. External load balancers are then told to stop using it.
	Leaving bool
}

// Kinds of objects, as in the Kubernetes API.
const (
	KindService       = "Service"
	KindEndpointSlice = "EndpointSlice"
	KindNode          = "Node"
	KindServiceCIDR   = "ServiceCIDR"
)

// Object names a Kubernetes object.
type Object struct {
	Kind, Namespace, Name string
}

// String returns "Kind namespace/name", without the namespace for an object that has none.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Reasons of problems: stable words, fit for the reason of a Kubernetes Event.
const (
	ReasonInvalidField   = "InvalidField"
	ReasonNotTranslated  = "NotTranslated"
	ReasonInvalidFile    = "InvalidManifest"
	ReasonUnreadable     = "ManifestUnreadable"
	ReasonDuplicate      = "DuplicateObject"
	ReasonUnsupported    = "UnsupportedKind"
	ReasonForbidden      = "Forbidden"
	ReasonServerFailed   = "APIServerUnreachable"
	ReasonNodeNotFound   = "NodeNotFound"
	ReasonNoSuchResource = "ResourceNotServed"
)

// Problem is something that a user must know: a field of an object that was left out, a file that cannot be read, a
// permission that is missing. Everything that it does not name goes on as if nothing was wrong.
type Problem struct {
	// Object is the object concerned; its zero value where none can be named.
	Object Object
	// Where tells the place: a file and the number of the document in it, or the API server. It may be empty.
	Where string
	// Field is the path of the field ("spec.ports[0].port") and Value what it holds; both may be empty.
	Field, Value string
	// Reason is one of the Reason constants.
	Reason string
	// Message says what is wrong and, where that helps, what to do; Effect what follows from it, when that is not
	// plain.
	Message, Effect string
}

// String returns one line with all that is known.
func (p Problem) String() string {
	var parts []string
	if p.Where != "" {
		parts = append(parts, p.Where)
	}
	if p.Object.Kind != "" {
		parts = append(parts, p.Object.String())
	}
	switch {
	case p.Field != "" && p.Value != "":
		parts = append(parts, p.Field+" "+quote(p.Value))
	case p.Field != "":
		parts = append(parts, p.Field)
	}
	message := p.Message
	if p.Effect != "" {
		message += "; " + p.Effect
	}
	return strings.Join(append(parts, message), ": ")
}

// quote makes a value of any length and content fit into one line.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return "\"" + strings.Map(func(r rune) rune {
		if r < ' ' || r == '"' || r == 0x7f {
			return '?'
		}
		return r
	}, s) + "\""
}
