package consumer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
)

// The functions below read the messages of the dispatcher's sinks, in each of their content modes, and in the formats
// Debezium, Storage, and Plain with a header id. They take headers and bytes as the brokers' own clients have them, so none of those is needed here. Their errors are [Refused]: no
// later delivery of the same message can be read either.

const (
	structured = "application/cloudevents+json"
	batch      = "application/cloudevents-batch+json"
)

// FromHTTP reads the events of a request, more than one with contentMode Batch. Its attributes are percent-decoded.
// [Consumer.HTTP] does this and all the rest.
// It fails with a [Refused] for a request that is not an event of an outbox, and with the body's error when that
// cannot be read.
func FromHTTP(header http.Header, body []byte) ([]*Event, error) {
	if media, _, _ := mime.ParseMediaType(header.Get("Content-Type")); media == batch {
		var all []json.RawMessage
		if json.Unmarshal(body, &all) != nil {
			return nil, undecodable("its body is not a JSON array")
		}
		events := make([]*Event, len(all))
		for i, one := range all {
			var err error
			if events[i], err = FromJSON(one); err != nil {
				return nil, fmt.Errorf("event %d of %d: %w", i+1, len(all), err)
			}
		}
		return events, nil
	}
	e, err := fromHeaders("", firsts(header), body, percentDecode)
	if err != nil {
		return nil, err
	}
	return []*Event{e}, nil
}

// FromJSON reads a CloudEvent that is one JSON object: what contentMode Structured sends, and a line of the log sink.
// It fails with a [Refused] for anything that is not an event of an outbox.
func FromJSON(data []byte) (*Event, error) {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil || members == nil {
		return nil, undecodable("it is not a JSON object")
	}
	payload := []byte(members["data"])
	if encoded, ok := members["data_base64"]; ok {
		var text string
		if json.Unmarshal(encoded, &text) != nil {
			return nil, undecodable("its data_base64 is not a text")
		}
		var err error
		if payload, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, undecodable("its data_base64 is not base64")
		}
	}
	delete(members, "data")
	delete(members, "data_base64")
	a := make(attributes, len(members))
	for name, value := range members {
		text := string(value)
		switch {
		case text == "null":
			continue
		case strings.HasPrefix(text, `"`):
			if json.Unmarshal(value, &text) != nil {
				return nil, undecodable("its attribute %s is not a text", name)
			}
		}
		a[name] = text
	}
	return a.event(payload)
}

// FromKafka reads a record. The key is in [Event.PartitionKey], too. It fails as [FromJSON] does.
func FromKafka(headers map[string]string, value []byte) (*Event, error) {
	return fromHeaders("", headers, value, nil)
}

// FromNATS reads a message; a nats.Header is a map like header. Its attributes are percent-decoded.
// It fails as [FromJSON] does.
func FromNATS(header map[string][]string, data []byte) (*Event, error) {
	return fromHeaders("", firsts(header), data, percentDecode)
}

// FromRabbitMQ reads a delivery: its property content-type, its headers (an amqp.Table is such a map) and its body.
// It fails as [FromJSON] does.
func FromRabbitMQ(contentType string, headers map[string]any, body []byte) (*Event, error) {
	return fromHeaders(contentType, texts(headers), body, nil)
}

// FromRedis reads an entry of a stream, as XREADGROUP gives it: all of its fields are texts.
// It fails as [FromJSON] does.
func FromRedis(fields map[string]any) (*Event, error) {
	all := texts(fields)
	if whole, ok := all["event"]; ok && all["id"] == "" {
		return FromJSON([]byte(whole))
	}
	payload := []byte(all["data"])
	delete(all, "data")
	if all["id"] == "" && all["trackingid"] == "" {
		if a := storageAttributes(all, payload); a != nil {
			return a.event(payload)
		}
	}
	return attributes(all).event(payload)
}

// FromSQS reads the body of a message of SQS, also when a topic of SNS put it there, with raw message delivery or without.
// Message attributes are not read: an event of format Storage has no type and no aggregate id here, and one of format Plain
// is none.
// It fails as [FromJSON] does.
func FromSQS(body string) (*Event, error) {
	var envelope struct{ Type, Message, SpecVersion string }
	known := json.Unmarshal([]byte(body), &envelope) == nil
	switch {
	case known && envelope.SpecVersion != "": // a CloudEvent, which may have such a type and an attribute message
		return FromJSON([]byte(body))
	case known && envelope.Type == "Notification" && envelope.Message != "":
		return FromSQS(envelope.Message)
	}
	if a := storageAttributes(nil, []byte(body)); a != nil {
		return a.event([]byte(body))
	}
	return FromJSON([]byte(body))
}

// FromSNS reads what SNS sends to an HTTP endpoint or a function: the message, or its notification.
// It fails as [FromJSON] does.
func FromSNS(message string) (*Event, error) { return FromSQS(message) }

// FromPubSub reads a message of Google Cloud Pub/Sub. It fails as [FromJSON] does.
func FromPubSub(attributes map[string]string, data []byte) (*Event, error) {
	return fromHeaders("", attributes, data, nil)
}

// FromServiceBus reads a message of Azure Service Bus: its ContentType, which may be nil, its ApplicationProperties and
// its body. It fails as [FromJSON] does.
func FromServiceBus(contentType *string, properties map[string]any, body []byte) (*Event, error) {
	if contentType == nil {
		contentType = new(string)
	}
	return fromHeaders(*contentType, texts(properties), body, nil)
}

// FromInbox reads a row of the postgres sink's table, as "select to_jsonb(e) from inbox_events e" gives it.
// It fails as [FromJSON] does.
func FromInbox(row []byte) (*Event, error) {
	var members map[string]json.RawMessage
	var headers map[string]any
	if json.Unmarshal(row, &members) != nil || decodeJSON(members["headers"], &headers) != nil {
		return nil, undecodable("the row is none of an inbox; select to_jsonb(e) from inbox_events e")
	}
	a := attributes{"datacontenttype": "application/json"}
	for name, value := range headers {
		a[attributeName(name)] = fmt.Sprint(value)
	}
	for column, name := range map[string]string{
		"id": "id", "namespace": "outboxnamespace", "topic": "topic", "event_type": "type", "aggregate_type": "aggregatetype",
		"aggregate_id": "aggregateid", "partition_key": "partitionkey", "tenant_id": "tenantid", "dedupe_key": "dedupekey",
		"sequence": "sequence", "aggregate_sequence": "aggregatesequence", "fencing_token": "fencingtoken", "created_at": "time",
	} {
		text := string(members[column])
		if strings.HasPrefix(text, `"`) {
			_ = json.Unmarshal(members[column], &text) // it is a text of valid JSON
		}
		if text != "null" {
			a[name] = text
		}
	}
	return a.event(members["payload"])
}

// prefixes of attributes in headers: of HTTP, NATS, RabbitMQ and Pub/Sub, of Kafka, and of AMQP 1.0.
var prefixes = []string{"ce-", "ce_", "cloudevents:", "cloudevents_"}

// fromHeaders reads the binary mode, or the structured one where the content type says so.
func fromHeaders(contentType string, headers map[string]string, body []byte, decode func(string) string) (*Event, error) {
	a, plain := attributes{}, attributes{}
	for name, value := range headers {
		name = strings.ToLower(name)
		switch name {
		case "content-type":
			contentType = value
			continue
		case "traceparent", "tracestate", "id": // id is that of Debezium's outbox router
			plain[name] = value
			continue
		}
		for _, prefix := range prefixes {
			if attribute, ok := strings.CutPrefix(name, prefix); ok {
				if decode != nil {
					value = decode(value)
				}
				a[attribute] = value
				break
			}
		}
	}
	if media, _, _ := mime.ParseMediaType(contentType); media == structured {
		return FromJSON(body)
	}
	if a["datacontenttype"] == "" {
		a["datacontenttype"] = contentType
	}
	if plain["id"] == "" && a["id"] == "" && a["trackingid"] == "" {
		maps.Copy(plain, storageAttributes(headers, body))
	}
	maps.Copy(plain, a) // the attributes win
	return plain.event(body)
}

// percentDecode undoes section 3.1.3.2 of the bindings of HTTP and NATS. What is not encoded so stays as it is.
func percentDecode(value string) string {
	if text, err := url.PathUnescape(value); err == nil {
		return text
	}
	return value
}

func firsts(header map[string][]string) map[string]string {
	all := make(map[string]string, len(header))
	for name, values := range header {
		if len(values) > 0 {
			all[name] = values[0]
		}
	}
	return all
}

func texts(values map[string]any) map[string]string {
	all := make(map[string]string, len(values))
	for name, value := range values {
		switch v := value.(type) {
		case nil:
		case []byte:
			all[name] = string(v)
		default:
			all[name] = fmt.Sprint(v)
		}
	}
	return all
}
