// Package httpsink posts events to a URL as CloudEvents 1.0, in the binary, structured or batched
// mode of the CloudEvents HTTP binding. Package cloudevent says which attributes they carry.
//
// # Outcomes
//
// The answer, or the lack of one, says what a delivery means to the engine:
//
//	what happened                                      outcome
//	-------------------------------------------------  ------------------------------------------
//	2xx                                                delivered
//	408, 425, 429, 5xx                                 failed; the pause of Retry-After is kept,
//	                                                   up to an hour
//	3xx (redirects are not followed), other 4xx        failed: the event was refused
//	no connection: DNS, dial, proxy, TLS handshake,    unavailable: nothing of the event was sent
//	a certificate either side does not accept, a file
//	of the configuration that cannot be used
//	the connection broke, no or no valid answer came   failed: the request may have been received
//
// A failed event spends an attempt and is retried by the backoff policy. An unavailable one goes
// back as it was, and claiming pauses (CONTRACT C-32).
//
// No request is sent twice in one delivery, not even by net/http on a connection that the server
// has closed: a second one would carry the same fencing token (CONTRACT C-27).
//
// In mode Batch the one answer is every event's, but for a refusal that may be about a single event
// (400, 409, 413, 422): then each event is sent by itself, so that one does not fail the others. They
// go under the same fencing token: a destination that refuses a batch must have taken none of it.
//
// # Header values
//
// In mode Binary the attributes' values are percent-encoded as section 3.1.3.2 of the binding
// demands: space, double quote, percent, and what is not printable ASCII. Some readers, the SDKs
// for Go and Java among them, do not decode them. A consumer that uses one, and has such values,
// should be sent mode Structured.
//
// # Files
//
// Certificates and credentials are read again when their files change, looked at no more often
// than each second. New certificates are used for new connections, and no request uses an old
// connection after that.
//
// # Probe
//
// Probe opens a connection to the URL's host, and for https makes the TLS handshake with all
// checks, and closes it. It sends no request. A server that asks for a client certificate may
// refuse it after the handshake; Probe gives it a second for that. When HTTP_PROXY or HTTPS_PROXY
// says that a proxy is used, Probe connects to the proxy instead.
package httpsink
