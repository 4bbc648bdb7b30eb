// Package httpsink posts events to a URL as CloudEvents 1.0, in the binary, structured or batched
// mode of the CloudEvents HTTP binding. Package cloudevent says which attributes they carry.
//
// dispatcher/sink/http.md has the settings, guarantees, outcomes and how to secure it.
package httpsink
