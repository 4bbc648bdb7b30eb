package spec

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRedisDefaults(t *testing.T) {
	c, err := load(t, strings.Replace(minimal, "{log: {}}", "{redis: {addresses: ['redis:6379']}}", 1))
	if err != nil {
		t.Fatal(err)
	}
	want := RedisSink{Addresses: []string{"redis:6379"}, Topology: RedisStandalone, Access: Access{ContentMode: Binary, Timeout: Duration(10 * time.Second)}}
	if !reflect.DeepEqual(*c.Sink.Redis, want) {
		t.Errorf("got  %+v\nwant %+v", *c.Sink.Redis, want)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the smallest file is refused: %v", err)
	}
}

func TestRedisValidate(t *testing.T) {
	for want, change := range map[string]func(*RedisSink){
		"":                                   func(r *RedisSink) { r.TLS, r.Topology, r.Addresses = &TLS{}, RedisCluster, []string{"a:1", "b:1"} },
		"sink.redis.addresses has 0 entries": func(r *RedisSink) { r.Addresses = nil },
		"sink.redis.addresses has 2 entries, which only a cluster has; set topology to Cluster": func(r *RedisSink) { r.Addresses = []string{"a:1", "b:1"} },
		`sink.redis.addresses[0] is "redis"; write it as host:port`:                             func(r *RedisSink) { r.Addresses = []string{"redis"} },
		`sink.redis.addresses[0] is "redis:70000"; write it as host:port`:                       func(r *RedisSink) { r.Addresses = []string{"redis:70000"} },
		"sink.redis.stream has more than 256 bytes; shorten it":                                 func(r *RedisSink) { r.Stream = strings.Repeat("s", 257) },
		"sink.redis.maxLen is -1; set it from 1":                                                func(r *RedisSink) { r.MaxLen = -1 },
		`sink.contentMode is "Batch"; choose one of Binary, Structured`:                         func(r *RedisSink) { r.ContentMode = "Batch" },
		"sink.redis.replicas is 101; set it from 0 to 100":                                      func(r *RedisSink) { r.Replicas = 101 },
		"sink.redis.database is -1; set it from 0":                                              func(r *RedisSink) { r.Database = -1 },
		"sink.redis.database is 3, and a cluster has only 0; remove it":                         func(r *RedisSink) { r.Topology, r.Database = RedisCluster, 3 },
		`sink.redis.topology is "Sentinel"; choose one of Standalone, Cluster`:                  func(r *RedisSink) { r.Topology = "Sentinel" },
	} {
		r := RedisSink{Addresses: []string{"redis:6379"}}
		r.ApplyDefaults()
		change(&r)
		err := r.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
