package desired

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
)

// maxSpec bounds the JSON of the parts of a spec that may be large. The operator renders them.
const maxSpec = 256 << 10

// AnnotationPart is on an object in the cache of whose spec only a part is there.
const AnnotationPart = "outbox.dev/part"

// SpecTooLarge is the sentence about a spec that is too large, empty for another.
func SpecTooLarge(obd *v1alpha1.OutboxDispatcher) string {
	text, err := json.Marshal([]any{obd.Spec.Sink.Routes, obd.Spec.Message})
	if err != nil {
		panic(fmt.Sprintf("size of a spec: %v", err)) // plain data only
	}
	if len(text) <= maxSpec {
		return ""
	}
	return fmt.Sprintf("spec.sink.routes and spec.message have %d bytes of JSON, and %d are the most; put schemas into ConfigMaps, and make several dispatchers of one.", len(text), maxSpec)
}

// shortTopic is how long the short form of a topic is at most.
const shortTopic = 64

// ShortTopic is a topic in the cache, of a spec of which only a part is there: its beginning and a hash, where it is long.
func ShortTopic(topic string) string {
	if len(topic) <= shortTopic {
		return topic
	}
	return strings.ToValidUTF8(topic[:shortTopic-1-hashLength], "") + "#" + Hash(topic)
}
