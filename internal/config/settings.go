package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Kinds of settings, as the help shows them.
const (
	kindText     = "string"
	kindBool     = "bool"
	kindDuration = "duration"
	kindNumber   = "int"
	kindPath     = "path"
	kindAddress  = "host:port"
)

// setting is one of the server's settings. A flag or variable that is empty
// does not exist. secret settings can be read from a file as well and never
// show in errors.
type setting struct {
	flag, env, def, kind string
	usage                string
	secret               bool
	set                  func(*Server, string) error
}

func (st *setting) name() string {
	switch {
	case st.flag == "":
		return st.env
	case st.env == "":
		return "--" + st.flag
	}
	return "--" + st.flag + " (" + st.env + ")"
}

func (st *setting) help() string {
	if st.env == "" {
		return st.usage
	}
	return st.usage + " [" + st.env + "]"
}

// settings is every setting there is; the reference page is tested against it.
var settings = append([]setting{
	{flag: "listen", env: "ORCH_LISTEN", def: "127.0.0.1:8080", kind: kindAddress, usage: "address of the API",
		set: required(address(func(s *Server) *string { return &s.Listen }))},
	{flag: "metrics-listen", env: "ORCH_METRICS_LISTEN", kind: kindAddress, usage: "address of a second listener, for /metrics alone; beyond loopback it wants the token",
		set: address(func(s *Server) *string { return &s.MetricsListen })},
	{flag: "data-dir", env: "ORCH_DATA_DIR", kind: kindPath, usage: "directory of the database and the encryption key",
		set: text(func(s *Server) *string { return &s.DataDir })},
	{flag: "accept-store", kind: kindBool, usage: "for this start: hosts take this state store in place of the one they know, after it was moved or restored; destruction is paused until fuse reconcile resume",
		set: boolean(func(s *Server, v *bool) { s.AcceptStore = v != nil && *v })},
	{flag: "vm-prefix", env: "ORCH_VM_PREFIX", def: fleet.DefaultVMPrefix, kind: kindText, usage: "what environment ids begin with", set: vmPrefix},
	{flag: "placement", env: "ORCH_PLACEMENT", def: string(fleet.PlacementSpread), kind: kindText, usage: "spread or binpack", set: placement},
	{flag: "reconcile-interval", env: "ORCH_RECONCILE_INTERVAL", def: "30s", kind: kindDuration, usage: "how often the fleet is compared with its hosts",
		set: duration(func(s *Server) *time.Duration { return &s.ReconcileInterval })},
	{flag: "auth-token", env: "ORCH_AUTH_TOKEN", kind: kindText, secret: true, usage: "token that clients must show; prefer the file form", set: authToken},
	{flag: "require-auth", env: "ORCH_REQUIRE_AUTH", kind: kindBool, usage: "refuse to start without a token, on loopback too",
		set: boolean(func(s *Server, v *bool) { s.RequireAuth = v != nil && *v })},
	{flag: "allowed-cidrs", env: "ORCH_ALLOWED_CIDRS", kind: kindText, usage: "networks that may use the API, comma separated; empty allows all", set: allowedCIDRs},
	{flag: "secure-cookies", env: "ORCH_SECURE_COOKIES", kind: kindBool, usage: "mark cookies for HTTPS only; unset: when the server itself speaks TLS",
		set: boolean(func(s *Server, v *bool) { s.secureCookies = v })},
	{env: "TOKEN_ENCRYPTION_KEY", kind: kindText, secret: true, usage: "64 hex digits that seal stored secrets; unset: the file key in the data directory, made when missing", set: encryptionKey},
	{env: "TOKEN_ENCRYPTION_KEY_OLD", kind: kindText, secret: true, usage: "earlier keys, comma separated, that open what they sealed until fuse server rekey is done", set: oldKeys},
	{flag: "insecure-no-encryption", env: "ORCH_INSECURE_NO_ENCRYPTION", kind: kindBool, usage: "store secrets without encrypting them; whoever reads the store has them all",
		set: boolean(func(s *Server, v *bool) { s.NoEncryption = v != nil && *v })},
	{flag: "tls-cert", env: "ORCH_TLS_CERT", kind: kindPath, usage: "certificate chain, PEM; together with the key it turns TLS on",
		set: text(func(s *Server) *string { return &s.tlsCert })},
	{flag: "tls-key", env: "ORCH_TLS_KEY", kind: kindPath, usage: "private key, PEM",
		set: text(func(s *Server) *string { return &s.tlsKey })},
	{flag: "read-header-timeout", def: "5s", kind: kindDuration, usage: "longest time for a request's headers",
		set: duration(func(s *Server) *time.Duration { return &s.ReadHeaderTimeout })},
	{flag: "write-timeout", def: "1m0s", kind: kindDuration, usage: "longest time to answer; exec, create and event streams have their own",
		set: duration(func(s *Server) *time.Duration { return &s.WriteTimeout })},
	{flag: "idle-timeout", def: "2m0s", kind: kindDuration, usage: "how long an idle connection is kept",
		set: duration(func(s *Server) *time.Duration { return &s.IdleTimeout })},
	{flag: "max-header-bytes", def: "65536", kind: kindNumber, usage: "most bytes of a request's headers", set: maxHeaderBytes},
	{flag: "startup-script-timeout", def: "30s", kind: kindDuration, usage: "for startup scripts that name none",
		set: duration(func(s *Server) *time.Duration { return &s.StartupScriptTimeout })},
	{flag: "max-startup-script-timeout", def: "55s", kind: kindDuration, usage: "longest that a startup script may name; less than the write timeout",
		set: duration(func(s *Server) *time.Duration { return &s.MaxStartupScriptTimeout })},
	{flag: "shutdown-timeout", env: "ORCH_SHUTDOWN_TIMEOUT_SECONDS", def: "30s", kind: kindDuration, usage: "how long work may take after a signal while no standby waits; answers have 2s",
		set: duration(func(s *Server) *time.Duration { return &s.ShutdownTimeout })},
	{flag: "lease", env: "ORCH_LEASE", def: "15s", kind: kindDuration, usage: "how long a server that falls silent keeps the fleet; another takes over within twice that", set: leasePeriod},
	{flag: "advertise", env: "ORCH_ADVERTISE", kind: kindText, usage: "URL at which other servers on this store reach this one; unset: made of the host's name or --listen", set: advertise},
	{flag: "store-timeout", env: "ORCH_STORE_TIMEOUT", def: "2m0s", kind: kindDuration, usage: "how long to try to reach the state store at the start before giving up",
		set: duration(func(s *Server) *time.Duration { return &s.StoreTimeout })},
	{flag: "log-level", env: "ORCH_LOG_LEVEL", def: "info", kind: kindText, usage: "debug, info, warn or error", set: logLevel},
	{flag: "log-format", env: "ORCH_LOG_FORMAT", def: "text", kind: kindText, usage: "text or json", set: logFormat},
	{flag: "store", env: "ORCH_STORE", kind: kindText, usage: "where the state is kept: sqlite, postgres or memory (which forgets); unset: postgres with a database URL, else sqlite in the data directory", set: storeKind},
	{flag: "database-url", env: "DATABASE_URL", kind: kindText, secret: true, usage: "PostgreSQL database for the state; prefer the file form", set: databaseURL},
	{flag: "database-max-conns", env: "ORCH_DATABASE_MAX_CONNS", def: "8", kind: kindNumber, usage: "most connections to PostgreSQL", set: databaseConns},
	{flag: "fleet-id", env: "ORCH_FLEET_ID", kind: kindText, usage: "fleet of a store in memory; VMs of an earlier start with it are destroyed", set: fleetID},
	{env: "FIRECRACKER_BASE_URL", kind: kindText, usage: "refused: hosts are registered", set: text(func(s *Server) *string { return &s.firecrackerURL })},
	noEffect("FIRECRACKER_TOKEN"),
	noEffect("AGENT_DOWNLOAD_URL"),
	noEffect("ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS"),
}, slices.Concat(reconcileSettings, placingSettings, hostSettings, eventSettings)...)

// noEffect is a variable of the public server that means nothing here.
func noEffect(env string) setting {
	return setting{env: env, kind: kindText, secret: true, usage: "taken, without effect", set: func(s *Server, v string) error {
		if v != "" && v != "0s" && v != "0" {
			s.Warnings = append(s.Warnings, env+" has no effect in this version")
		}
		return nil
	}}
}

func text(field func(*Server) *string) func(*Server, string) error {
	return func(s *Server, v string) error {
		*field(s) = v
		return nil
	}
}

// required refuses an empty text: for net.Listen that would be every address
// of the machine.
func required(set func(*Server, string) error) func(*Server, string) error {
	return func(s *Server, v string) error {
		if v == "" {
			return errors.New("is empty")
		}
		return set(s, v)
	}
}

func address(field func(*Server) *string) func(*Server, string) error {
	return func(s *Server, v string) error {
		if v == "" {
			return nil
		}
		_, port, err := net.SplitHostPort(v)
		if err != nil {
			return fmt.Errorf("%q is no host:port", v)
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("%q has no port of 0 to 65535", v)
		}
		*field(s) = v
		return nil
	}
}

// minLease is the shortest lease: less than that, and a pause of the process
// ends it.
const minLease = 500 * time.Millisecond

func leasePeriod(s *Server, v string) error {
	if err := duration(func(s *Server) *time.Duration { return &s.Lease })(s, v); err != nil {
		return err
	}
	if s.Lease < minLease {
		return fmt.Errorf("%s is less than %s", s.Lease, minLease)
	}
	return nil
}

func advertise(s *Server, v string) error {
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return fmt.Errorf("%q is no URL such as https://server-1:8080", v)
	}
	s.Advertise = u.Scheme + "://" + u.Host
	return nil
}

func boolean(assign func(*Server, *bool)) func(*Server, string) error {
	return func(s *Server, v string) error {
		var b bool
		switch strings.ToLower(v) {
		case "":
			assign(s, nil)
			return nil
		case "true", "1", "yes":
			b = true
		case "false", "0", "no":
		default:
			return fmt.Errorf("%q is neither true, 1, yes nor false, 0, no", v)
		}
		assign(s, &b)
		return nil
	}
}

func duration(field func(*Server) *time.Duration) func(*Server, string) error {
	return func(s *Server, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is no duration such as 30s or 2m", v)
		}
		if d <= 0 {
			return fmt.Errorf("%s must be more than zero", d)
		}
		*field(s) = d
		return nil
	}
}

var prefixRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$`)

func vmPrefix(s *Server, v string) error {
	if !prefixRule.MatchString(v) {
		return fmt.Errorf("%q does not match %s", v, prefixRule)
	}
	s.VMPrefix = v
	return nil
}

func placement(s *Server, v string) error {
	s.Placement = fleet.PlacementPolicy(v)
	if s.Placement != fleet.PlacementSpread && s.Placement != fleet.PlacementBinpack {
		return fmt.Errorf("%q is neither spread nor binpack", v)
	}
	return nil
}

func authToken(s *Server, v string) error {
	if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("has characters that a header cannot carry; use printable ASCII without spaces")
	}
	s.AuthToken = v
	return nil
}

func encryptionKey(s *Server, v string) error {
	if v == "" {
		return nil
	}
	if raw, err := hex.DecodeString(v); err != nil || len(raw) != 32 {
		return fmt.Errorf("has %d characters; it must be 64 hex digits", len(v))
	}
	s.EncryptionKey = v
	return nil
}

func oldKeys(s *Server, v string) error {
	if v == "" {
		return nil
	}
	for i, part := range strings.Split(v, ",") {
		part = strings.TrimSpace(part)
		if raw, err := hex.DecodeString(part); err != nil || len(raw) != 32 {
			return fmt.Errorf("key %d of it has %d characters; each must be 64 hex digits", i+1, len(part))
		}
		s.OldKeys = append(s.OldKeys, part)
	}
	return nil
}

func allowedCIDRs(s *Server, v string) error {
	if strings.TrimSpace(v) == "" {
		return nil
	}
	var errs []error
	for part := range strings.SplitSeq(v, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if addr, aerr := netip.ParseAddr(part); aerr == nil {
			p, err = netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%q is no network such as 10.0.0.0/8", part))
			continue
		}
		s.AllowedCIDRs = append(s.AllowedCIDRs, p.Masked())
	}
	return errors.Join(errs...)
}

func maxHeaderBytes(s *Server, v string) error {
	const low, high = 4096, 1 << 20
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%q is not within %d to %d", v, low, high)
	}
	s.MaxHeaderBytes = n
	return nil
}

func logLevel(s *Server, v string) error {
	if err := s.LogLevel.UnmarshalText([]byte(v)); err != nil {
		return fmt.Errorf("%q is neither debug, info, warn nor error", v)
	}
	return nil
}

func logFormat(s *Server, v string) error {
	if v != "text" && v != "json" {
		return fmt.Errorf("%q is neither text nor json", v)
	}
	s.LogFormat = v
	return nil
}

// withoutValue hides a secret that a message might quote.
func withoutValue(err error) error {
	if strings.Contains(err.Error(), `"`) {
		return errors.New("is not usable")
	}
	return err
}

// value is a flag's text; it is read when all settings are.
type value struct{ text, kind string }

func (v *value) String() string { return v.text }

// Set implements pflag.Value.
func (v *value) Set(s string) error {
	v.text = s
	return nil
}

// Type implements pflag.Value.
func (v *value) Type() string { return v.kind }
