package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outbox-operator/outbox-operator/api/spec"
	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/dispatcher"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/consumercheck"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/document"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/pipeline"
	"github.com/outbox-operator/outbox-operator/dispatcher/internal/sinks/files"
)

// verifyConsumerFlags are what to verify, and how.
type verifyConsumerFlags struct {
	url, contentMode, namespace, topic, eventType, payload string
	headers                                                []string
	format                                                 string
	messageHeaders                                         []string
	tokenFile, user, passwordFile, signingFile, caFile     string
	probe, probeMember, probeTokenMember, probeCommand     string
	optional                                               []string
	restart, fail, failRecord, crash                       string
	anyType, noRecord, latestOnly                          bool
	settle, requestTimeout, timeout                        time.Duration
	output, evidence                                       string
}

// hookFlags are the flags that set the hooks and the declarations.
var hookFlags = map[consumercheck.Hook]string{
	consumercheck.Effects: "--probe or --probe-command", consumercheck.Optional: "--optional", consumercheck.Restart: "--restart",
	consumercheck.FailEffect: "--fail", consumercheck.FailRecord: "--fail-record", consumercheck.Crash: "--crash",
	consumercheck.Token: "--probe-token-member", consumercheck.AnyType: "--any-type", consumercheck.NoRecord: "--no-record",
	consumercheck.LatestOnly: "--latest-only",
}

func verifyConsumerCommand() *cobra.Command {
	var f verifyConsumerFlags
	cmd := &cobra.Command{
		Use: "verify-consumer --url URL", Args: cobra.NoArgs,
		Short: "Verify that an HTTP consumer keeps the rules of consumers, and name the ones that it breaks",
		Long: `Verify that an HTTP consumer, in any language, keeps the rules of consumers, and name the ones that it breaks.

It sends real events to the URL, as the http sink sends them, and the consumer handles them: name a consumer in a
test environment. It needs neither a configuration file nor an outbox. Each check has events of its own, with new
ids: delivered twice, replayed, given up half-way, with an older token, in another order, eight at a time, with
fields that are new or missing, of a type that no consumer knows, and again at the end.

--probe says how often an event took effect: a URL that returns a number, or a JSON object that has one in
--probe-member. --probe-command prints it. {id} is replaced by the event's id, there and in the payload. Without
either the responses alone are judged: such a check is Partly passed, or NotRun where responses show nothing.
--probe-token-member names the member with the fencing token of the delivery whose effect is outside of the
consumer's database; then the fence is checked.

Some checks need a command, which sh runs. --fail, --fail-record and --crash are run twice, with {state} replaced by
"on" and then "off". They, and --restart, return when what they do is done; after --restart and --crash events are
sent until they are taken.
  --fail         on: effects fail. The consumer must not respond with 2xx, and must repeat the effect later
  --fail-record  on: the record of handled events can be neither read nor written. There must be no effect
  --crash        on: the next event ends the consumer after its effect and before its record is committed. off: it
                 is started again
  --restart      ends the consumer, and starts it with nothing but its database

What a consumer does on purpose it declares:
  --any-type     it takes, or skips, events of types that it does not know
  --no-record    it keeps no record, because its effect has a unique key or is idempotent by itself
  --latest-only  it skips an event when a later one of the aggregate is applied

The report has a line for each check, and for each broken rule what was done, what came of it, and what to change.
"Lost" is an event that is acknowledged and has no effect, and "early" one that is acknowledged before it has its
effect. A check that would be broken for the cause of one before it is not run, and says which it follows from. A
consumer that responds later than --request-timeout, or never, is broken: a dispatcher gives such a delivery up and
sends the event again. --evidence writes what the report proves for an OutboxConsumer:
  kubectl patch outboxconsumer NAME --type merge --patch-file FILE

Exit codes: 0 when no rule is broken, 3 when one is, 1 when the checks could not be finished.`,
		Example: `  dispatcher verify-consumer --url http://localhost:8080/events --type OrderPlaced --payload order.json \
    --optional currency --probe 'http://localhost:8080/test/effects?id={id}'
  dispatcher verify-consumer --url http://localhost:8080/events --format Plain --message-header id=event.id
  dispatcher verify-consumer --url http://localhost:8080/events --content-mode Structured \
    --probe-command "psql service=test -Atc \"select count(*) from invoices where tracking_id = '{id}'\"" \
    --fail 'curl -fsS -X POST localhost:8080/test/fail/{state}' --output json`,
		RunE: work(func(cmd *cobra.Command) error { return verifyConsumer(cmd, f) }),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.url, "url", "", "where the consumer takes events (required)")
	flags.StringVar(&f.contentMode, "content-mode", "Binary", "Binary or Structured, as in the http sink")
	flags.StringVar(&f.format, "format", string(spec.FormatCloudEvents), "CloudEvents, Plain or Storage, as message.format of the dispatcher. For Debezium's: Plain with --message-header id=event.id")
	flags.StringArrayVar(&f.messageHeaders, "message-header", nil, "a header of each message by an expression, as message.headers of the dispatcher: NAME=EXPRESSION, such as id=event.id; may be repeated")
	flags.StringVar(&f.namespace, "namespace", "verify", "the events' outbox namespace")
	flags.StringVar(&f.topic, "topic", "verify", "the events' topic")
	flags.StringVar(&f.eventType, "type", "ConsumerVerified", "the events' type: one that the consumer handles")
	flags.StringVar(&f.payload, "payload", "", "a file with the events' payload, a JSON object that the consumer handles (default: {})")
	flags.StringArrayVar(&f.headers, "header", nil, "a header of each request, as NAME=VALUE, or NAME=@FILE for one that a file has; may be repeated")
	flags.StringVar(&f.tokenFile, "token-file", "", "a file with a token, sent as Bearer")
	flags.StringVar(&f.user, "user", "", "a user's name, with --password-file")
	flags.StringVar(&f.passwordFile, "password-file", "", "a file with the user's password")
	flags.StringVar(&f.signingFile, "signing-secret-file", "", "a file with a secret of Standard Webhooks (whsec_…), to sign each request")
	flags.StringVar(&f.caFile, "ca-file", "", "a file with the authority of the URL's certificate (default: the system's)")
	flags.StringVar(&f.probe, "probe", "", "a URL with {id} that returns how often the event took effect. At the URL's own host it is sent the same headers")
	flags.StringVar(&f.probeMember, "probe-member", "count", "the member that has the number, when the probe returns a JSON object")
	flags.StringVar(&f.probeTokenMember, "probe-token-member", "", "the member of the probe's JSON object that has the fencing token of the effect, for a consumer that fences")
	flags.StringVar(&f.probeCommand, "probe-command", "", "a command with {id} that prints how often the event took effect")
	flags.StringSliceVar(&f.optional, "optional", nil, "a field of the payload that may be missing; may be repeated")
	flags.StringVar(&f.restart, "restart", "", "a command that restarts the consumer")
	flags.StringVar(&f.fail, "fail", "", "a command that makes effects fail, {state} on and off")
	flags.StringVar(&f.failRecord, "fail-record", "", "a command that makes the records of handled events fail, {state} on and off")
	flags.StringVar(&f.crash, "crash", "", "a command that has the consumer crash between effect and record, {state} on and off")
	flags.DurationVar(&f.settle, "settle", 0, "how long to wait before effects are counted, for a probe that reads a replica. An early acknowledgement is not seen then (default: 0s)")
	flags.BoolVar(&f.anyType, "any-type", false, "the consumer takes, or skips, events of types that it does not know on purpose")
	flags.BoolVar(&f.noRecord, "no-record", false, "the consumer keeps no record of handled events: its effect has a unique key, or is idempotent by itself")
	flags.BoolVar(&f.latestOnly, "latest-only", false, "the consumer skips an event on purpose when a later one of the aggregate is applied")
	flags.DurationVar(&f.requestTimeout, "request-timeout", 0, "how long the dispatcher waits for a response: the timeout of the sink. At most a thirtieth of --timeout (default: 10s, or that)")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "the bound of all checks; one may take a tenth of it")
	flags.StringVar(&f.evidence, "evidence", "", "a file to write with the evidence for an OutboxConsumer, also of broken rules: a merge patch for kubectl patch")
	flags.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func verifyConsumer(cmd *cobra.Command, f verifyConsumerFlags) error {
	write, err := reportWriter(f.output, consumerTable)
	if err != nil {
		return err
	}
	if f.requestTimeout == 0 {
		f.requestTimeout = min(10*time.Second, f.timeout/30)
	}
	h, err := newHTTPConsumer(f, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	defer func() { _ = h.sink.Close(ctx) }()
	if err := h.sink.Probe(ctx); err != nil { // later it is waited for, since checks restart it
		return fmt.Errorf("the consumer cannot be reached: %w", err)
	}
	results, failed := consumercheck.Run(ctx, h.consumer())
	found := consumercheck.NewReport(f.eventType, results, failed, func(hook consumercheck.Hook) string { return hookFlags[hook] })
	found.URL, found.ContentMode = h.name, f.contentMode
	if err := write(cmd.OutOrStdout(), found); err != nil {
		return err
	}
	if f.evidence != "" && failed == nil {
		if err := found.WriteEvidence(f.evidence); err != nil {
			return fmt.Errorf("%w; correct --evidence", err)
		}
	}
	switch {
	case failed != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the checks were not done within %s: %w; raise --timeout", f.timeout, failed)
	case failed != nil:
		return fmt.Errorf("the checks could not be finished: %w", failed)
	case len(found.BrokenRules) > 0:
		return differs{fmt.Errorf("the consumer breaks %s", strings.Join(found.BrokenRules, ", "))}
	}
	return nil
}

// consumerTable is a report for people.
func consumerTable(w io.Writer, r *status.Consumer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s, type %s, contentMode %s: of %d checks %d passed, %d passed partly, %d found a rule broken, %d were not run\n\n",
		oneLine(r.URL), oneLine(r.Type), r.ContentMode, len(r.Checks), r.Count(status.ConsumerPassed), r.Count(status.ConsumerPartly),
		r.Count(status.ConsumerBroken), r.Count(status.ConsumerNotRun))
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "RULE\tCHECK\tOUTCOME\n")
	for _, c := range r.Checks {
		fmt.Fprintf(table, "%s\t%s\t%s%s\n", c.Rule, c.Name, c.Outcome, note(c))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, c := range r.Checks {
		if c.Outcome == status.ConsumerBroken {
			fmt.Fprintf(&text, "\n%s broken: %s: %s (event %s)\n  %s\n", c.Rule, c.Name, oneLine(c.Evidence), c.Event, c.Remedy)
		}
	}
	if len(r.NotTried) > 0 && len(r.BrokenRules) == 0 {
		fmt.Fprintf(&text, "\nNot verified yet, since these were not tried: %s\n", strings.Join(r.NotTried, ", "))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// note is the cell of the table after an outcome, if there is one.
func note(c status.ConsumerCheck) string {
	switch {
	case c.Follows != "":
		return "\tfollows from " + c.Follows
	case c.Outcome == status.ConsumerPartly:
		return "\teffects were not counted; set " + c.Needs
	case c.LeftOut != "":
		return "\tleft out by " + c.LeftOut
	case c.Outcome == status.ConsumerNotRun && c.Needs != "" && c.Optional:
		return "\toptional; set " + c.Needs
	case c.Outcome == status.ConsumerNotRun && c.Needs != "":
		return "\tset " + c.Needs
	case c.Outcome == status.ConsumerNotRun:
		return "\tnot reached"
	}
	return ""
}

// checkTimeout bounds a check.
func (f verifyConsumerFlags) checkTimeout() time.Duration { return f.timeout / 10 }

// sink is the configuration of the http sink that the flags make.
func (f verifyConsumerFlags) sink() (spec.HTTPSink, error) {
	cfg := spec.HTTPSink{URL: f.url}
	cfg.ContentMode = spec.ContentMode(f.contentMode)
	cfg.Timeout = spec.Duration(min(f.checkTimeout(), 10*time.Minute)) // the checks end a request sooner
	for _, header := range f.headers {
		name, value, ok := strings.Cut(header, "=")
		if path, isFile := strings.CutPrefix(value, "@"); isFile {
			content, err := files.Read("--header "+name, path)
			if err != nil {
				return cfg, err
			}
			value = string(content)
		}
		switch {
		case !ok:
			return cfg, errors.New("--header is not NAME=VALUE or NAME=@FILE; correct it")
		case strings.EqualFold(name, "Authorization"):
			return cfg, errors.New("--header Authorization: set --token-file, or --user with --password-file, in its place")
		}
		cfg.Headers = append(cfg.Headers, spec.HTTPHeader{Name: name, Value: value})
	}
	switch {
	case f.tokenFile != "" && f.user+f.passwordFile != "":
		return cfg, errors.New("--token-file and --user are two logins; set one of them")
	case (f.user == "") != (f.passwordFile == ""):
		return cfg, errors.New("--user and --password-file belong together; set both")
	case f.tokenFile != "":
		cfg.Auth = &spec.Auth{Type: spec.AuthToken, SecretFile: f.tokenFile}
	case f.user != "":
		cfg.Auth = &spec.Auth{Type: spec.AuthBasic, Username: f.user, SecretFile: f.passwordFile}
	}
	cfg.SigningSecretFile = f.signingFile
	if f.caFile != "" {
		cfg.TLS = &spec.TLS{CAFile: f.caFile}
	}
	return cfg, nil
}

// fits checks what flags make, whose names replaces those of fields.
func fits(cfg spec.HTTPSink, message spec.Message, names *strings.Replacer) error {
	_, err := document.Complete(spec.Config{
		Dispatcher: spec.Dispatcher{
			Sink: spec.Sink{HTTP: &cfg, Auth: cfg.Auth, TLS: cfg.TLS, ContentMode: cfg.ContentMode, Timeout: cfg.Timeout}, Message: message,
		},
	})
	if err != nil {
		return fmt.Errorf("the flags do not fit: %s", names.Replace(invalid.ReplaceAllString(err.Error(), "$1: ")))
	}
	return nil
}

// invalid is what the API server writes before the cause.
var invalid = regexp.MustCompile(`spec\.([^ ]+): Invalid value: `)

// asMessages returns a sink that sends messages of the format.
func (f verifyConsumerFlags) asMessages(sink dispatcher.Sink, cfg spec.HTTPSink) (dispatcher.Sink, error) {
	message := spec.Message{Format: spec.MessageFormat(f.format)}
	for _, header := range f.messageHeaders {
		name, expression, ok := strings.Cut(header, "=")
		if !ok {
			return nil, errors.New("--message-header is not NAME=EXPRESSION, such as id=event.id; correct it")
		}
		message.Headers = append(message.Headers, spec.MessageHeader{Name: name, Expression: expression})
	}
	if err := fits(cfg, message, messageFlags); err != nil {
		return nil, err
	}
	p, err := pipeline.New(spec.Config{Dispatcher: spec.Dispatcher{Sink: spec.Sink{HTTP: &cfg}, Message: message}}, pipeline.Options{})
	if err != nil {
		return nil, fmt.Errorf("the flags do not fit: %s", messageFlags.Replace(err.Error()))
	}
	return p.Wrap(sink), nil
}

// messageFlags has the flags of the fields of messages.
var messageFlags = strings.NewReplacer("message.format", "--format", "message.headers", "--message-header")
