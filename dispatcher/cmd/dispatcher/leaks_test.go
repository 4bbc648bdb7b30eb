package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// useless are credentials' files that hold something else, and clouds that repeat what they get.
func useless(t *testing.T, dir, closed string) map[string]leak {
	lines, google := filepath.Join(dir, "lines"), filepath.Join(dir, "google")
	check(t, os.WriteFile(lines, []byte("two-"+secret+"\nlines-"+secret), 0o600))
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b.example", "private_key_id": secret, "private_key": secret, "token_uri": "http://" + closed,
	})
	check(t, err)
	check(t, os.WriteFile(google, account, 0o600))
	aws := []string{"AWS_ACCESS_KEY_ID=" + secret, "AWS_SECRET_ACCESS_KEY=" + secret, "AWS_SESSION_TOKEN=" + secret, "AWS_REGION=eu-central-1"}
	echo := consumer(t, http.StatusBadRequest)
	return map[string]leak{
		"http with a token of no use":      {fmt.Sprintf("{http: {url: 'http://%s'}, auth: {type: Token, secretFile: %s}}", closed, lines), unavailable, nil, ""},
		"http with a signature of no use":  {fmt.Sprintf("{http: {url: 'http://%s', signingSecretFile: %s}}", closed, lines), unavailable, nil, ""},
		"http with a client key of no use": {fmt.Sprintf("{http: {url: 'https://%s'}, tls: {clientCertFile: %s, clientKeyFile: %[2]s}}", closed, lines), unavailable, nil, ""},
		"nats with credentials of no use":  {fmt.Sprintf("{nats: {servers: ['nats://%s']}, auth: {type: Credentials, secretFile: %s}}", closed, lines), unavailable, nil, ""},
		"sqs that repeats what it gets":    {fmt.Sprintf("{sqs: {queueURL: '%s/1/orders'}}", echo), unavailable, aws, ""},
		"sns that repeats what it gets":    {fmt.Sprintf("{sns: {topicARN: 'arn:aws:sns:eu-central-1:123456789012:orders', endpoint: '%s'}}", echo), unavailable, aws, ""},
		"pubSub with a key of no use":      {"{pubSub: {project: orders-1}, timeout: 1s}", unavailable, []string{"GOOGLE_APPLICATION_CREDENTIALS=" + google}, ""},
	}
}

// registries are schema registries that know the login, refuse it, and repeat it, and payloads that do
// not fit their schemas.
func registries(t *testing.T, dir, closed, brokers, login, wrong string) map[string]leak {
	f := srfake.New(srfake.WithAuth("Basic " + basic))
	t.Cleanup(f.Close)
	f.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: `{"type": "record", "name": "a", "fields": [{"name": "card", "type": "long"}]}`})
	f.SeedSchema("proto", 1, 2, sr.Schema{Type: sr.TypeProtobuf, Schema: `syntax = "proto3"; message A { int64 card = 1; }`})
	f.SeedSchema("json", 1, 3, sr.Schema{Type: sr.TypeJSON, Schema: `{"properties": {"card": {"pattern": "^[0-9]+$"}}}`})
	kafka := func(encoding string) string {
		return fmt.Sprintf("{kafka: {brokers: ['%s'], encoding: %s}, auth: {type: Plain, %s}}", brokers, encoding, login)
	}
	at := func(url, auth string) string {
		return fmt.Sprintf("message: {schemaRegistry: {url: '%s', auth: {%s}}}\n", url, auth)
	}
	known := at(f.URL(), "type: Basic, "+login)
	return map[string]leak{
		"registry's Avro":                    {kafka("Avro"), dead, nil, known},
		"registry's Protobuf":                {kafka("Protobuf, subject: proto"), dead, nil, known},
		"registry's JSON Schema":             {fmt.Sprintf("{http: {url: '%s'}}", consumer(t, http.StatusOK)), dead, nil, strings.TrimSuffix(known, "}\n") + ", validation: [{schema: {registry: {subject: json}}}]}\n"},
		"registry wrong password":            {kafka("Avro"), unavailable, nil, at(f.URL(), "type: Basic, "+wrong)},
		"registry that repeats what it gets": {kafka("Avro"), unavailable, nil, at(consumer(t, http.StatusUnauthorized), "type: Token, secretFile: "+dir+"/bearer")},
		"registry that is another server":    {kafka("Avro"), unavailable, nil, at(consumer(t, http.StatusOK), "type: Token, secretFile: "+dir+"/bearer")},
		"registry with a token of no use":    {kafka("Avro"), unavailable, nil, at(f.URL(), "type: Token, secretFile: "+dir+"/lines")},
		"registry closed":                    {kafka("Avro"), unavailable, nil, at("http://"+closed, "type: Token, secretFile: "+dir+"/bearer")},
	}
}
