// Package config reads the server's settings from flags, environment and
// files, in this order of precedence, and checks them all before anything
// starts. It reports every problem at once. Reading is pure: environment and
// files come in as functions.
package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/fleet"
)

// Server are the settings of a control plane; docs/reference/settings.md names
// each with its flag and variable.
type Server struct {
	Listen        string // host:port
	MetricsListen string // host:port of a second listener for /metrics; empty: none
	DataDir       string
	// AcceptStore has hosts take this state store in place of the one they know,
	// for this start.
	AcceptStore bool
	VMPrefix    string
	Placement   fleet.PlacementPolicy
	Placing     Placing
	// ReconcileInterval is the tick of the converge loop (seed: 30 s).
	ReconcileInterval time.Duration
	Reconcile         Reconcile
	Events            Events

	Hosts       Hosts
	DeadLetters DeadLetters

	AuthToken     string
	RequireAuth   bool
	AllowedCIDRs  []netip.Prefix
	SecureCookies bool
	// EncryptionKey is 64 hex digits; empty: DataDir/key is used, and made.
	EncryptionKey string
	// OldKeys opened the state before EncryptionKey did: 64 hex digits each.
	OldKeys []string
	// NoEncryption stores secrets in the clear.
	NoEncryption bool
	// Certificate is nil when the server speaks plain HTTP.
	Certificate *tls.Certificate

	ReadHeaderTimeout       time.Duration
	WriteTimeout            time.Duration
	IdleTimeout             time.Duration
	MaxHeaderBytes          int
	StartupScriptTimeout    time.Duration
	MaxStartupScriptTimeout time.Duration
	ShutdownTimeout         time.Duration

	Store         string // one of the Store constants
	DatabaseURL   string // of PostgreSQL; secret
	DatabaseConns int
	FleetID       string // of a store in memory; empty: a new one per start

	// Lease is how long this server owns the fleet unless it renews.
	Lease time.Duration
	// Advertise is the URL of this server for others on its store; empty: made
	// of what it listens on.
	Advertise string
	// StoreTimeout is how long the state store may be out of reach at the start.
	StoreTimeout time.Duration

	LogLevel  slog.Level
	LogFormat string // text or json

	// Warnings are settings that are taken but deserve a word in the log.
	Warnings []string

	tlsCert, tlsKey string
	secureCookies   *bool
	firecrackerURL  string
}

// MetricsLocal reports whether only this machine can reach the second listener.
func (s *Server) MetricsLocal() bool { return loopback(s.MetricsListen) }

// Loopback reports whether only this machine can reach the API.
func (s *Server) Loopback() bool { return loopback(s.Listen) }

// Environ is where settings come from besides flags.
type Environ struct {
	Lookup   func(name string) (string, bool)
	ReadFile func(path string) ([]byte, error)
}

// OS is the process's own environment.
func OS() Environ { return Environ{Lookup: os.LookupEnv, ReadFile: os.ReadFile} }

// Register adds the settings' flags to fs.
func Register(fs *pflag.FlagSet) {
	for i := range settings {
		s := &settings[i]
		if s.flag == "" {
			continue
		}
		fs.Var(&value{text: s.def, kind: s.kind}, s.flag, s.help())
		if s.kind == kindBool {
			fs.Lookup(s.flag).NoOptDefVal = "true"
		}
		if s.secret {
			fs.Var(&value{kind: kindPath}, s.flag+"-file", "file that holds the value of --"+s.flag)
		}
	}
}

// Load reads the settings: a flag that was given wins over the environment,
// that over the default. The error lists everything that is wrong.
func Load(fs *pflag.FlagSet, env Environ) (Server, error) {
	var s Server
	var errs []error
	for i := range settings {
		st := &settings[i]
		text, from, err := st.find(fs, env)
		if err == nil {
			err = st.set(&s, text)
		}
		if err != nil {
			if st.secret {
				err = withoutValue(err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", from, err))
		}
	}
	errs = append(errs, s.check(env)...)
	return s, errors.Join(errs...)
}

// find returns the text of a setting and the name under which it was given.
func (st *setting) find(fs *pflag.FlagSet, env Environ) (text, from string, err error) {
	from = st.name()
	if st.flag != "" {
		plain, file := fs.Lookup(st.flag), fs.Lookup(st.flag+"-file")
		given := plain != nil && plain.Changed
		fromFile := st.secret && file != nil && file.Changed
		switch {
		case given && fromFile:
			return st.def, "--" + st.flag, fmt.Errorf("is given twice, with --%s-file too", st.flag)
		case given:
			return plain.Value.String(), "--" + st.flag, nil
		case fromFile:
			text, err = readSecret(env, file.Value.String())
			return text, "--" + st.flag + "-file", err
		}
	}
	if st.env == "" {
		return st.def, from, nil
	}
	text, given := lookup(env, st.env)
	if st.secret {
		if path, fromFile := lookup(env, st.env+"_FILE"); fromFile {
			if given {
				return st.def, st.env, fmt.Errorf("is given twice, with %s_FILE too", st.env)
			}
			text, err = readSecret(env, path)
			return text, st.env + "_FILE", err
		}
	}
	if !given {
		return st.def, from, nil
	}
	if strings.HasSuffix(st.env, "_SECONDS") {
		if _, err := strconv.ParseUint(text, 10, 31); err != nil {
			return st.def, st.env, fmt.Errorf("%q is no number of seconds", text)
		}
		text += "s"
	}
	return text, st.env, nil
}

// lookup takes an empty variable for one that is not set, as the public server
// does.
func lookup(env Environ, name string) (string, bool) {
	v, ok := env.Lookup(name)
	return v, ok && v != ""
}

const maxSecretFile = 64 << 10

func readSecret(env Environ, path string) (string, error) {
	raw, err := env.ReadFile(path)
	if err != nil {
		return "", err
	}
	if len(raw) > maxSecretFile {
		return "", fmt.Errorf("%s has %d bytes, more than %d", path, len(raw), maxSecretFile)
	}
	return strings.TrimRight(string(raw), "\r\n"), nil
}

// check looks at the settings together.
func (s *Server) check(env Environ) []error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.DataDir == "" {
		add("--data-dir (ORCH_DATA_DIR): is needed; it holds the database and the encryption key")
	}
	errs = append(errs, s.checkStore()...)
	if s.firecrackerURL != "" {
		add("FIRECRACKER_BASE_URL: there is no default host; register hosts with fuse host register --url")
	}
	if s.AuthToken == "" && s.Listen != "" && !s.Loopback() {
		add("--listen (ORCH_LISTEN): %s can be reached from other machines and there is no token; set --auth-token-file (ORCH_AUTH_TOKEN) or listen on 127.0.0.1", s.Listen)
	}
	if s.AuthToken == "" && s.MetricsListen != "" && !s.MetricsLocal() {
		add("--metrics-listen (ORCH_METRICS_LISTEN): %s can be reached from other machines and there is no token; set --auth-token-file (ORCH_AUTH_TOKEN) or listen on 127.0.0.1", s.MetricsListen)
	}
	if s.RequireAuth && s.AuthToken == "" {
		add("--require-auth (ORCH_REQUIRE_AUTH): there is no token; set --auth-token-file (ORCH_AUTH_TOKEN)")
	}
	if s.NoEncryption && s.EncryptionKey != "" {
		add("--insecure-no-encryption: there is a key, in TOKEN_ENCRYPTION_KEY; give one of the two")
	}
	if s.NoEncryption {
		s.Warnings = append(s.Warnings, "secrets are stored without encryption (--insecure-no-encryption): whoever reads the state store or a backup of it has every guest's and host's token and all secrets of environments")
	}
	if s.StartupScriptTimeout > s.MaxStartupScriptTimeout {
		add("--startup-script-timeout: %s is more than --max-startup-script-timeout, %s", s.StartupScriptTimeout, s.MaxStartupScriptTimeout)
	}
	if s.MaxStartupScriptTimeout >= s.WriteTimeout {
		add("--max-startup-script-timeout: %s must be less than --write-timeout, %s, or answers could not be sent", s.MaxStartupScriptTimeout, s.WriteTimeout)
	}
	if err := s.loadCertificate(env); err != nil {
		errs = append(errs, err)
	}
	s.SecureCookies = s.Certificate != nil
	if s.secureCookies != nil {
		s.SecureCookies = *s.secureCookies
	}
	if s.AuthToken != "" && s.Certificate == nil && s.Listen != "" && !s.Loopback() {
		s.Warnings = append(s.Warnings, "the token travels in clear: the API listens on "+s.Listen+" without --tls-cert and --tls-key")
	}
	return errs
}

func (s *Server) loadCertificate(env Environ) error {
	switch {
	case s.tlsCert == "" && s.tlsKey == "":
		return nil
	case s.tlsKey == "":
		return errors.New("--tls-cert (ORCH_TLS_CERT): needs --tls-key (ORCH_TLS_KEY) too")
	case s.tlsCert == "":
		return errors.New("--tls-key (ORCH_TLS_KEY): needs --tls-cert (ORCH_TLS_CERT) too")
	}
	certPEM, err := env.ReadFile(s.tlsCert)
	if err != nil {
		return fmt.Errorf("--tls-cert (ORCH_TLS_CERT): %w", err)
	}
	keyPEM, err := env.ReadFile(s.tlsKey)
	if err != nil {
		return fmt.Errorf("--tls-key (ORCH_TLS_KEY): %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	s.Certificate = &cert
	return nil
}

func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}
