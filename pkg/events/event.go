// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

// Controller is the reporting controller of shunt's Events.
const Controller = "shunt"

// What the agent was doing.
const (
	ActionTranslate = "Translate"
	ActionListen    = "Listen"
	ActionStart     = "StartShunt"
)

// Reasons beside those of the model and the sources. Those that kube-proxy has too carry its words.
const (
	ReasonStarting           = "Starting"
	ReasonHealthServer       = "FailedToStartProxierHealthcheck"
	ReasonMetricsServer      = "FailedToStartMetricServer"
	ReasonServiceHealthcheck = "FailedToStartServiceHealthcheck"
	ReasonMapFull            = "MapFull"
	ReasonBindConflict       = "NodePortBound"
)

// The limits of the API.
const (
	maxNote = 1024
	maxName = 253
)

// Event is something to know about an object.
type Event struct {
	// Object is what it is about; what is about no object, or one that the API does not have, is in the log alone. An
	// empty UID is completed for a Service and for a Node. Node Events carry the node's name in place of a UID, as the
	// kubelet's do; that is what `kubectl describe node` looks for.
	Object source.Object
	UID    string
	// Normal: nothing is wrong.
	Normal bool
	// Reason is a CamelCase word, Action what was being done, Note the text.
	Reason, Action, Note string
	// PerNode: each node has this for itself. Otherwise all nodes that see it make one Event of it.
	PerNode bool
}

// FromModel returns the Event of a problem of a Service.
func FromModel(p model.Problem) Event {
	return Event{Object: serviceObject(p.Service), Reason: p.Reason, Action: ActionTranslate, Note: p.Message}
}

// FromSource returns the Event of a problem of an object as it was received.
func FromSource(p source.Problem, uid string) Event {
	return Event{Object: p.Object, UID: uid, Reason: p.Reason, Action: ActionTranslate, Note: p.String()}
}

// OnService returns an Event about a Service on this node.
func OnService(name model.ServiceName, reason, action, note string) Event {
	return Event{Object: serviceObject(name), Reason: reason, Action: action, Note: note, PerNode: true}
}

func serviceObject(name model.ServiceName) source.Object {
	return source.Object{Kind: source.KindService, Namespace: name.Namespace, Name: name.Name}
}

// OnNode returns an Event about a node.
func OnNode(node, reason, action, note string) Event {
	return Event{Object: source.Object{Kind: source.KindNode, Name: node}, Reason: reason, Action: action, Note: note,
		PerNode: true}
}

// about returns what the log says beside the text.
func (e Event) about() []any {
	if e.Object == (source.Object{}) {
		return []any{"reason", e.Reason}
	}
	return []any{"object", e.Object.String(), "reason", e.Reason}
}

// hasObject tells whether there can be an Event in the API: a problem of a file, say, is about no object there.
func (e Event) hasObject() bool { return apiVersions[e.Object.Kind] != "" && e.Object.Name != "" }

// api returns e as an object of the API. Salt makes Events that say the same different.
func (e Event) api(node, salt string, now time.Time) *eventsv1.Event {
	kind := corev1.EventTypeWarning
	if e.Normal {
		kind = corev1.EventTypeNormal
	}
	instance := Controller + "-" + node
	if e.PerNode {
		salt += "\x00" + instance
	}
	namespace := e.Object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: e.name(salt)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: Controller,
		ReportingInstance:   shorten(instance, 128),
		Action:              e.Action,
		Reason:              e.Reason,
		Type:                kind,
		Note:                shorten(e.Note, maxNote),
		Regarding: corev1.ObjectReference{APIVersion: apiVersions[e.Object.Kind], Kind: e.Object.Kind,
			Namespace: e.Object.Namespace, Name: e.Object.Name, UID: types.UID(e.UID)},
	}
}

// apiVersions are those of the kinds that a source delivers.
var apiVersions = map[string]string{
	source.KindService:       "v1",
	source.KindNode:          "v1",
	source.KindEndpointSlice: "discovery.k8s.io/v1",
	source.KindServiceCIDR:   "networking.k8s.io/v1",
}

// name derives the Event's name from what it says.
func (e Event) name(salt string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%s\x00%s", e.Object, e.UID, e.Reason, e.Action, e.Note, salt)
	suffix := fmt.Sprintf(".%016x", h.Sum64())
	return e.Object.Name[:min(len(e.Object.Name), maxName-len(suffix))] + suffix
}

// shorten cuts a text to what the API takes, and shows that it did.
func shorten(text string, limit int) string {
	const more = "..."
	if len(text) <= limit {
		return text
	}
	cut := limit - len(more)
	for cut > 0 && text[cut]&0xc0 == 0x80 { // not inside a UTF-8 sequence
		cut--
	}
	return text[:cut] + more
}
