package v1alpha1

// RedisSink adds to streams of Redis or Valkey.
type RedisSink struct{}
