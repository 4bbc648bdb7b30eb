// Package redissink adds events to streams of Redis, of Valkey, or of what speaks their protocol, as
// CloudEvents 1.0. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/redis.md has the settings, guarantees, outcomes and how to secure it.
package redissink
