// Package httpsink posts events to a URL as CloudEvents 1.0, in the binary, structured or batched
// mode of the CloudEvents HTTP binding. Package cloudevent says which attributes they carry.
//
// # Settings
//
//	setting         default         meaning
//	--------------  --------------  -------------------------------------------------------------
//	url             none, required  where events are posted; http or https
//	contentMode     Binary          Binary: attributes as headers ce-<name>, the payload as body.
//	                                Structured: one JSON object. Batch: a JSON array
//	batchSize       100             events in a request of contentMode Batch, 1 to 1000
//	timeout         10s             of one request
//	headers         none            added to every request; not for secrets
//	auth            none            tokenFile, sent as Bearer; or basic with username or usernameFile,
//	                                and passwordFile
//	signing         none            secretFile: signatures as Standard Webhooks says
//	maxConnections  0, no bound     requests at a time, and so connections. Events that wait for
//	                                their turn do not time out
//	captureResponse false           keeps the first KiB of the response that an event dies of in its dead letter
//	tls             none            caFile, serverName; clientCertFile and clientKeyFile (mutual TLS)
//
// # Guarantees
//
// At least once: an event is delivered when the destination responded 2xx. Connections are kept while
// they are used, as many as there are requests at a time, and for four seconds more.
//
// # Routes
//
// A route leads from url to where an event goes, as a link in a page does (RFC 3986): from
// https://host/in/any, orders leads to /in/orders and /orders to /orders. Scheme, host and port are
// url's: a route that leads elsewhere, or has a segment .. to climb up, is refused, because it may be
// made from what is in an event. The query of url is kept unless the route has one. With contentMode Batch
// there is a request for each destination.
//
// # Signatures
//
// With signing every request carries the headers of the Standard Webhooks specification:
//
//	header             value
//	-----------------  --------------------------------------------------------------------------
//	webhook-id         the event id: the same at each attempt. For several events with contentMode Batch a
//	                   UUID made from their ids; consumers dedupe on the events' own ids
//	webhook-timestamp  the time of this sending, on the dispatcher's clock
//	webhook-signature  v1, and HMAC-SHA256 of id, timestamp and the whole body, in base64; one for
//	                   each secret, with spaces between them
//
// The file has a secret on each line: whsec_ and 24 to 64 random bytes in base64. To change a secret
// without a gap, write the new one as a second line, let consumers change, and remove the old one. Only
// the body and the id are signed: with contentMode Binary not the attributes, which are headers. Choose
// Structured or Batch when consumers must be able to trust those.
//
// # Outcomes
//
// The response, or the lack of one, says what a delivery means to the engine:
//
//	what happened                                      outcome
//	-------------------------------------------------  ------------------------------------------
//	2xx                                                delivered
//	429, 5xx: the destination, or a gateway before it  destination's fault
//	408, 425                                           failed
//	401, and 407 of a proxy: credentials that are      unavailable: nothing was taken, and no other
//	missing, wrong or expired                          event would be
//	3xx (redirects are not followed), other 4xx        failed: the event was refused
//	the event's route leads to another host            failed
//	no connection: DNS, dial, proxy, TLS handshake,    unavailable: nothing of the event was sent
//	a certificate either side does not accept, a file
//	of the configuration that cannot be used
//	the connection broke, no or no valid response came   failed: the request may have been received
//
// A failed event spends an attempt and is retried by the backoff policy. A destination's fault does so
// where others of the topic were delivered since the event was claimed, or since it failed before that; else the
// attempt is given back. An unavailable
// event goes back as it was, and claiming pauses (CONTRACT C-32). The pause of Retry-After is kept, up to
// an hour, with 408, 425, 429 and 5xx.
//
// No request is sent twice in one delivery, not even by net/http on a connection that the server
// has closed: a second one would carry the same fencing token (CONTRACT C-27).
//
// With contentMode Batch the one response is every event's, but for a refusal that may be about a single event
// (400, 409, 413, 422): then each event is sent by itself, so that one does not fail the others. They
// go under the same fencing token: a destination that refuses a batch must have taken none of it. After any
// other failure of a batch its events come again in smaller ones, with later tokens, so that one which makes
// the destination fail is soon alone.
//
// # What the destination answered
//
// The engine's errors name the status and never quote the response, which may repeat the event. With
// captureResponse the first KiB of the body of a response other than 2xx, as text, is kept in the dead letter
// (outbox_dead_letters.response) when the event dies of that response. No log, metric or status has it.
//
// # How to secure it
//
// Use an https URL, with tls.caFile for an authority of your own, and let the destination know the
// dispatcher: by mutual TLS, a bearer token or signing. Nothing secret belongs into url or headers,
// which everybody may read who may read the dispatcher.
//
// # Header values
//
// With contentMode Binary the attributes' values are percent-encoded as section 3.1.3.2 of the binding
// demands: space, double quote, percent, and what is not printable ASCII. Some readers, the SDKs
// for Go and Java among them, do not decode them. A consumer that uses one, and has such values,
// should be sent contentMode Structured.
//
// The configuration's message adds headers that are computed for each event, and has formats without attributes, whose
// requests are the payload: see dispatcher/sink/README.md. A value that is not printable ASCII is percent-encoded.
//
// # Files
//
// Certificates, credentials and secrets are read again when their files change, looked at no more often
// than each second. New certificates are used for new connections, and no request uses an old
// connection after that.
//
// # Probe
//
// Probe opens a connection to the URL's host, and for https makes the TLS handshake with all
// checks, and closes it. It sends no request. A server that checks a client certificate may
// refuse it after the handshake; Probe gives it a second for that. When HTTP_PROXY or HTTPS_PROXY
// says that a proxy is used, Probe connects to the proxy instead.
package httpsink
