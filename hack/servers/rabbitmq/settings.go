package rabbitmq

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// Ports that are not for clients.
const (
	epmdPort = "epmd"
	distPort = "distribution"
)

func (b *Broker) path(name string) string { return filepath.Join(b.Dir, name) }

// script returns a command that runs one of RabbitMQ's scripts for this node alone.
func (b *Broker) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(scripts, name), args...)
	cmd.Dir = b.Dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + b.Dir,
		"RABBITMQ_NODENAME=outbox@localhost",
		"RABBITMQ_ALLOW_INPUT=true", // the node is this very process then, not a child of a shell
		"RABBITMQ_MNESIA_BASE=" + b.path("data"),
		"RABBITMQ_LOG_BASE=" + b.Dir, "RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + b.path("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + b.path("none.config"),
		"RABBITMQ_CONF_ENV_FILE=" + b.path("none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + b.path("plugins"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + b.path("data"),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(b.ports[distPort]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(b.ports[epmdPort]),
	}
	return cmd
}

// configure writes the node's files.
func (b *Broker) configure() error {
	b.ports = map[string]int{}
	names := []string{epmdPort, distPort, Plain}
	for _, l := range b.opts.Listeners {
		names = append(names, l.Name)
	}
	for _, name := range names {
		port, err := daemon.FreePort()
		if err != nil {
			return err
		}
		b.ports[name] = port
	}
	definitions, err := json.Marshal(b.definitions())
	if err != nil {
		return err
	}
	files := map[string]string{
		"rabbitmq.conf": b.conf(), "definitions.json": string(definitions),
		"plugins": "[" + strings.Join(append(b.opts.Plugins, "rabbitmq_auth_mechanism_ssl"), ",") + "].\n", ".erlang.cookie": "outbox",
	}
	for _, l := range b.opts.Listeners {
		files[l.Name+".crt"], files[l.Name+".key"], files[l.Name+".ca"] = l.CertPEM, l.KeyPEM, l.ClientCAPEM
	}
	if err := os.Mkdir(b.path("data"), 0o700); err != nil {
		return fmt.Errorf("make the broker's directory: %w", err)
	}
	mine := []string{b.Dir, b.path("data")}
	for name, text := range files {
		if err := os.WriteFile(b.path(name), []byte(text), 0o400); err != nil {
			return fmt.Errorf("write the broker's settings: %w", err)
		}
		mine = append(mine, b.path(name))
	}
	return daemon.Give(b.owner, mine...)
}

func (b *Broker) conf() string {
	settings := map[string]string{
		"listeners.tcp.1":  b.Address(Plain),
		"load_definitions": b.path("definitions.json"),
		// EXTERNAL needs these, though each listener has its own.
		"ssl_options.verify":               "verify_peer",
		"ssl_options.fail_if_no_peer_cert": "true",
		"auth_mechanisms.1":                "PLAIN",
		"auth_mechanisms.2":                "EXTERNAL",
		"ssl_cert_login_from":              "common_name",
		"disk_free_limit.absolute":         "50MB",
	}
	maps.Copy(settings, b.opts.Settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, settings[name])
	}
	return text.String()
}

// definitions are the users and the vhost /, in RabbitMQ's own form.
func (b *Broker) definitions() any {
	type object map[string]any
	all := [3]string{".*", ".*", ".*"}
	users := []object{{"name": Admin, "password_hash": hash(Admin), "tags": "administrator"}}
	permission := func(user string, p [3]string) object {
		return object{"user": user, "vhost": "/", "configure": p[0], "write": p[1], "read": p[2]}
	}
	permissions := []object{permission(Admin, all)}
	for user, password := range b.opts.Users {
		h := ""
		if password != "" {
			h = hash(password)
		}
		users = append(users, object{"name": user, "password_hash": h, "tags": ""})
	}
	for user, p := range b.opts.Permissions {
		permissions = append(permissions, permission(user, p))
	}
	return object{"vhosts": []object{{"name": "/"}}, "users": users, "permissions": permissions}
}

// hash is RabbitMQ's hash of a password.
func hash(password string) string {
	salt := []byte("salt")
	sum := sha256.Sum256(append(salt, password...))
	return base64.StdEncoding.EncodeToString(append(salt, sum[:]...))
}

// listen is Erlang that opens the listeners with TLS. Those of the settings have one certificate between
// them.
func (b *Broker) listen() string {
	var code strings.Builder
	for _, l := range b.opts.Listeners {
		tls := fmt.Sprintf("{certfile,%q},{keyfile,%q}", b.path(l.Name+".crt"), b.path(l.Name+".key"))
		if l.ClientCAPEM != "" {
			tls += fmt.Sprintf(",{cacertfile,%q},{verify,verify_peer},{fail_if_no_peer_cert,true}", b.path(l.Name+".ca"))
		}
		fmt.Fprintf(&code, "rabbit_networking:start_ssl_listener({\"127.0.0.1\",%d}, [%s], 1), ", b.ports[l.Name], tls)
	}
	return code.String() + "ok."
}
