package spec

import (
	"strings"
	"testing"
	"time"
)

func TestCloudValidate(t *testing.T) {
	const queue, topic = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders", "arn:aws:sns:eu-west-1:123456789012:orders"
	long := Duration(11 * time.Minute)
	for _, test := range []struct {
		sink interface {
			member
			Validate() error
		}
		want string
	}{
		{&SQSSink{QueueURL: queue}, ""},
		{&SQSSink{QueueURL: queue + ".fifo", Region: "us-gov-east-1", Endpoint: "https://vpce.example.com"}, ""},
		{&SQSSink{QueueURL: "https://sqs.eusc-de-east-1.amazonaws.eu/123456789012/orders", Region: "eusc-de-east-1"}, ""},
		{&SQSSink{}, "sink.sqs.queueURL must be the URL of a queue, such as"},
		{&SQSSink{QueueURL: "https://user@sqs.eu-west-1.amazonaws.com/1/orders"}, "sink.sqs.queueURL must be"},
		{&SQSSink{QueueURL: "http://localhost:65535/1/orders"}, ""},
		{&SQSSink{QueueURL: "http://localhost:65536/1/orders"}, "sink.sqs.queueURL must have a port up to 65535; correct it"},
		{&SQSSink{QueueURL: "http://localhost:0/1/orders"}, "sink.sqs.queueURL must be the URL of a queue"},
		{&SQSSink{QueueURL: queue, Endpoint: "http://localhost:65536"}, "sink.sqs.endpoint must have a port up to 65535; correct it"},
		{&SQSSink{QueueURL: queue, Region: "Ireland"}, `sink.sqs.region is "Ireland"; write a region such as`},
		{&SQSSink{QueueURL: queue, Endpoint: "https://vpce.example.com/q"}, "sink.sqs.endpoint must be an http:// or https:// URL"},
		{&SQSSink{QueueURL: queue, Access: Access{Timeout: long}}, "sink.timeout is 11m; set it from 100ms to 10m"},
		{&SNSSink{TopicARN: topic}, ""},
		{&SNSSink{TopicARN: "arn:aws-cn:sns:cn-north-1:123456789012:orders.fifo"}, ""},
		{&SNSSink{TopicARN: strings.Replace(topic, "sns", "sqs", 1)}, "sink.sns.topicARN must be the ARN of a topic, such as"},
		{&SNSSink{TopicARN: topic + strings.Repeat("s", 250)}, ""},
		{&SNSSink{TopicARN: topic + strings.Repeat("s", 251)}, "sink.sns.topicARN must be the ARN of a topic"},
		{&SNSSink{TopicARN: topic + strings.Repeat("s", 245) + ".fifo"}, ""},
		{&SNSSink{TopicARN: topic + strings.Repeat("s", 246) + ".fifo"}, "sink.sns.topicARN must be the ARN of a topic"},
		{&SNSSink{TopicARN: topic, Endpoint: "vpce"}, "sink.sns.endpoint must be an http:// or https:// URL"},
		{&SNSSink{TopicARN: topic, Access: Access{Timeout: long}}, "sink.timeout is 11m"},
		{&PubSubSink{Project: "shop-production", Topic: "orders"}, ""},
		{&PubSubSink{Project: "example.com:shop-production", Endpoint: "http://localhost:8085"}, ""},
		{&PubSubSink{}, "sink.pubSub.project must be the id of a project"},
		{&PubSubSink{Project: "shop-production", Topic: "a/b"}, `sink.pubSub.topic is "a/b", which Pub/Sub does not take; use 3 to 255 alphanumeric characters and -._~+%, the`},
		{&PubSubSink{Project: "shop-production", Access: Access{ContentMode: "Batch"}}, `sink.contentMode is "Batch"; choose one of Binary, Structured`},
		{&PubSubSink{Project: "shop-production", Endpoint: "localhost:8085"}, "sink.pubSub.endpoint must be"},
		{&PubSubSink{Project: "shop-production", Access: Access{Timeout: long}}, "sink.timeout is 11m"},
		{&ServiceBusSink{Namespace: "shop.servicebus.windows.net", Queue: "a/orders"}, ""},
		{&ServiceBusSink{Namespace: "shop.servicebus.windows.net", Endpoint: "10.0.0.1:5671"}, ""},
		{&ServiceBusSink{Namespace: "sb://shop"}, "sink.serviceBus.namespace must be a host name"},
		{&ServiceBusSink{Namespace: "shop", Queue: "a", Topic: "b"}, "sink.serviceBus has queue and topic; keep one of them"},
		{&ServiceBusSink{Namespace: "shop", Queue: "a?"}, `sink.serviceBus.queue is "a?", which Service Bus does not take`},
		{&ServiceBusSink{Namespace: "shop", Topic: "/a"}, `sink.serviceBus.topic is "/a", which Service Bus does not take`},
		{&ServiceBusSink{Namespace: "shop", Access: Access{ContentMode: "Batch"}}, `sink.contentMode is "Batch"; choose`},
		{&ServiceBusSink{Namespace: "shop", Endpoint: "https://a"}, `sink.serviceBus.endpoint is "https://a"; write it as host or host:port, with`},
		{&ServiceBusSink{Namespace: "shop", Endpoint: "10.0.0.1:65536"}, `sink.serviceBus.endpoint is "10.0.0.1:65536"; write`},
		{&ServiceBusSink{Namespace: "shop", Endpoint: "10.0.0.1:0"}, `sink.serviceBus.endpoint is "10.0.0.1:0"; write`},
		{&ServiceBusSink{Namespace: "shop", Access: Access{Timeout: long}}, "sink.timeout is 11m"},
	} {
		test.sink.ApplyDefaults()
		switch err := test.sink.Validate(); {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", test.sink, err)
		case test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)):
			t.Errorf("%+v: error %v\nwant %s", test.sink, err, test.want)
		}
	}
}

func TestHTTPSigningAndConnections(t *testing.T) {
	for want, change := range map[string]func(*HTTPSink){
		"": func(h *HTTPSink) { h.SigningSecretFile, h.CaptureResponse, h.MaxConnections = "a", CaptureBody, 8 },
		`sink.http.captureResponse is "true"; choose one of None, Body`:         func(h *HTTPSink) { h.CaptureResponse = "true" },
		"sink.http.maxConnections is -1; set it from 0 to 1000":                 func(h *HTTPSink) { h.MaxConnections = -1 },
		"sink.http.maxConnections is 1001; set it":                              func(h *HTTPSink) { h.MaxConnections = 1001 },
		`sink.http.headers["Webhook-Id"] is set by the dispatcher itself; choo`: func(h *HTTPSink) { h.Headers = map[string]string{"Webhook-Id": "a"} },
	} {
		h := HTTPSink{URL: "https://consumer.example"}
		change(&h)
		h.ApplyDefaults()
		var p problems
		h.validate(&p)
		switch err := p.join(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("error %v\nwant %s", err, want)
		}
	}
}
