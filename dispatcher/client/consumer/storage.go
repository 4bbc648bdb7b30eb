package consumer

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// storageIDs is the name space of ids that are not UUIDs: those of rows that were adopted.
var storageIDs = uuid.NewSHA1(uuid.NameSpaceURL, []byte("outbox.dev/storage"))

// storageAttributes are the attributes of a message in the format Storage, which has them in the payload's member metadata; nil
// for any other message.
func storageAttributes(headers map[string]string, body []byte) attributes {
	var payload struct {
		Metadata map[string]any `json:"metadata"`
	}
	if decodeJSON(body, &payload) != nil {
		return nil
	}
	text, ok := payload.Metadata["outbox_id"].(string)
	if !ok || text == "" {
		return nil
	}
	id, err := uuid.Parse(text)
	if err != nil {
		id = uuid.NewSHA1(storageIDs, []byte(text))
	}
	a := attributes{"id": id.String()}
	for name, value := range payload.Metadata {
		switch value.(type) {
		case string, json.Number, bool:
			a[attributeName(name)] = fmt.Sprint(value)
		}
	}
	delete(a, "sequencenumber")
	if number, ok := payload.Metadata["sequence_number"].(json.Number); ok {
		a["aggregatesequence"] = number.String()
	}
	for name, value := range headers {
		switch attributeName(name) {
		case "eventtype":
			a["type"] = value
		case "aggregateid", "headeraggregateid": // which is an attribute of a CloudEvent, too
			a["aggregateid"] = value
		}
	}
	return a
}
