package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/fleet"
)

func load(t *testing.T, args []string, vars, files map[string]string) (Server, error) {
	t.Helper()
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	Register(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags, Environ{
		Lookup: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if v, ok := files[path]; ok {
				return []byte(v), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	})
}

func defaults() Server {
	return Server{
		Listen: "127.0.0.1:8080", DataDir: "/d", VMPrefix: "fuse-", Placement: fleet.PlacementSpread, ReconcileInterval: 30 * time.Second,
		Reconcile:         Reconcile{MaxRuntime: 2 * time.Hour, OrphanTries: 5, MaxDestroyPerCycle: 100, MaxDestroyPerHour: 1000},
		Placing:           Placing{Tries: 3, CPUs: 1, RamMB: 512, DiskGB: 4},
		Hosts:             Hosts{UnreachableLooks: 3, UnreachableAfter: 90 * time.Second, ProbeInterval: time.Hour},
		DeadLetters:       DeadLetters{Retention: 2160 * time.Hour, Keep: 10_000},
		Events:            Events{Retention: 720 * time.Hour, Keep: 1_000_000},
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 65536,
		StartupScriptTimeout: 30 * time.Second, MaxStartupScriptTimeout: 55 * time.Second, ShutdownTimeout: 30 * time.Second,
		Lease: 15 * time.Second, StoreTimeout: 2 * time.Minute, Store: StoreSQLite, DatabaseConns: 8,
		LogLevel: slog.LevelInfo, LogFormat: "text",
	}
}

func TestSettings(t *testing.T) {
	cert, key := keyPair(t)
	files := map[string]string{"cert": cert, "key": key, "token": "from-file\n", "spaces": "a b"}
	const hex64 = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	for _, c := range []struct {
		name string
		args []string
		vars map[string]string
		want func(*Server)
	}{
		{"defaults", nil, nil, func(*Server) {}},
		{"environment", nil, map[string]string{
			"ORCH_LISTEN": "localhost:1", "ORCH_VM_PREFIX": "p-", "ORCH_PLACEMENT": "binpack", "ORCH_AUTH_TOKEN": "tok",
			"ORCH_REQUIRE_AUTH": "yes", "ORCH_SECURE_COOKIES": "1", "ORCH_SHUTDOWN_TIMEOUT_SECONDS": "7",
			"TOKEN_ENCRYPTION_KEY": hex64, "ORCH_LOG_LEVEL": "debug", "ORCH_LOG_FORMAT": "json",
		}, func(s *Server) {
			s.Listen, s.VMPrefix, s.Placement, s.AuthToken, s.RequireAuth, s.SecureCookies = "localhost:1", "p-", "binpack", "tok", true, true
			s.ShutdownTimeout, s.EncryptionKey, s.LogLevel, s.LogFormat = 7*time.Second, hex64, slog.LevelDebug, "json"
		}},
		{"flags beat the environment", []string{"--listen=127.0.0.1:2", "--require-auth=false", "--auth-token=flag"},
			map[string]string{"ORCH_LISTEN": ":1", "ORCH_REQUIRE_AUTH": "true", "ORCH_AUTH_TOKEN": "env"},
			func(s *Server) { s.Listen, s.AuthToken = "127.0.0.1:2", "flag" }},
		{"empty variables are unset", nil, map[string]string{"ORCH_LISTEN": "", "ORCH_AUTH_TOKEN": "", "DATABASE_URL": "", "ORCH_SHUTDOWN_TIMEOUT_SECONDS": ""}, func(*Server) {}},
		{"secret from a file", nil, map[string]string{"ORCH_AUTH_TOKEN_FILE": "token"}, func(s *Server) { s.AuthToken = "from-file" }},
		{"file flag beats the environment", []string{"--auth-token-file=token"}, map[string]string{"ORCH_AUTH_TOKEN": "env"}, func(s *Server) { s.AuthToken = "from-file" }},
		{"a database", nil, map[string]string{"DATABASE_URL": "postgres://u:p@h/d", "ORCH_DATABASE_MAX_CONNS": "20"}, func(s *Server) {
			s.Store, s.DatabaseURL, s.DatabaseConns = StorePostgres, "postgres://u:p@h/d", 20
		}},
		{"a store in memory", []string{"--store=memory"}, nil, func(s *Server) {
			s.Store, s.Warnings = StoreMemory, []string{memoryWarning("")}
		}},
		{"a store in memory for a known fleet", []string{"--store=memory", "--fleet-id=01J00000000000000000000000"}, nil, func(s *Server) {
			s.Store, s.FleetID = StoreMemory, "01J00000000000000000000000"
			s.Warnings = []string{memoryWarning(s.FleetID)}
		}},
		{"lease and address", []string{"--lease=1s", "--advertise=https://server-1:8080/"}, nil, func(s *Server) {
			s.Lease, s.Advertise = time.Second, "https://server-1:8080"
		}},
		{"bare boolean flag", []string{"--require-auth", "--auth-token=t"}, nil, func(s *Server) { s.RequireAuth, s.AuthToken = true, "t" }},
		{"networks", nil, map[string]string{"ORCH_ALLOWED_CIDRS": "10.1.2.3/8, fd00::/8,192.0.2.1"}, func(s *Server) {
			s.AllowedCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("192.0.2.1/32")}
		}},
		{"TLS makes cookies secure", []string{"--tls-cert=cert", "--tls-key=key", "--listen=:443", "--auth-token=t"}, nil, func(s *Server) {
			s.Listen, s.AuthToken, s.SecureCookies = ":443", "t", true
		}},
		{"unless they are not to be", []string{"--tls-cert=cert", "--tls-key=key", "--secure-cookies=no"}, nil, func(*Server) {}},
		{"a token in clear is told", []string{"--listen=0.0.0.0:80", "--auth-token=t"}, nil, func(s *Server) {
			s.Listen, s.AuthToken = "0.0.0.0:80", "t"
			s.Warnings = []string{"the token travels in clear: the API listens on 0.0.0.0:80 without --tls-cert and --tls-key"}
		}},
		{"without effect", nil, map[string]string{"AGENT_DOWNLOAD_URL": "x", "ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS": "0"}, func(s *Server) {
			s.Warnings = []string{"AGENT_DOWNLOAD_URL has no effect in this version"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := load(t, append([]string{"--data-dir=/d"}, c.args...), c.vars, files)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults()
			c.want(&want)
			if (got.Certificate != nil) != slices.Contains(c.args, "--tls-cert=cert") {
				t.Errorf("certificate %v", got.Certificate)
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Server{}), cmpopts.IgnoreFields(Server{}, "Certificate"),
				cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEveryProblemIsListed(t *testing.T) {
	_, err := load(t, []string{"--listen=:8080", "--tls-cert=missing", "--write-timeout=nonsense", "--idle-timeout=0s", "--max-header-bytes=1"}, map[string]string{
		"ORCH_ALLOWED_CIDRS": "10.0.0.0/99,nowhere", "ORCH_REQUIRE_AUTH": "maybe", "DATABASE_URL": "mysql://user:hunter2@db/fuse",
		"ORCH_SHUTDOWN_TIMEOUT_SECONDS": "1m", "TOKEN_ENCRYPTION_KEY": "hunter3", "ORCH_LOG_LEVEL": "loud", "ORCH_PLACEMENT": "random",
		"ORCH_VM_PREFIX": "../", "FIRECRACKER_BASE_URL": "http://x",
	}, nil)
	if err == nil {
		t.Fatal("accepted")
	}
	text := err.Error()
	for _, want := range []string{
		"--listen (ORCH_LISTEN): :8080 can be reached from other machines and there is no token",
		"--tls-cert (ORCH_TLS_CERT): needs --tls-key",
		`--write-timeout: "nonsense" is no duration`,
		"--idle-timeout: 0s must be more than zero",
		"--max-header-bytes: ",
		`ORCH_ALLOWED_CIDRS: "10.0.0.0/99" is no network`, `"nowhere" is no network`,
		`ORCH_REQUIRE_AUTH: "maybe"`,
		"DATABASE_URL: is no address such as postgres://",
		`ORCH_SHUTDOWN_TIMEOUT_SECONDS: "1m" is no number of seconds`,
		"TOKEN_ENCRYPTION_KEY: has 7 characters",
		`ORCH_LOG_LEVEL: "loud"`, `ORCH_PLACEMENT: "random"`, `ORCH_VM_PREFIX: "../"`,
		"FIRECRACKER_BASE_URL: there is no default host",
		"--data-dir (ORCH_DATA_DIR): is needed",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not told: %s", want)
		}
	}
	if strings.Contains(text, "hunter") {
		t.Errorf("a secret is in the error: %s", text)
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestRefusedTogether(t *testing.T) {
	cert, key := keyPair(t)
	_, otherKey := keyPair(t)
	files := map[string]string{"cert": cert, "key": key, "other": otherKey, "token": "t", "spaces": "a b\n", "big": strings.Repeat("x", maxSecretFile+1)}
	for _, c := range []struct {
		args []string
		vars map[string]string
		want string
	}{
		{[]string{"--require-auth"}, nil, "--require-auth (ORCH_REQUIRE_AUTH): there is no token"},
		{[]string{"--listen=192.0.2.1:80"}, nil, "can be reached from other machines"},
		{[]string{"--metrics-listen=:9464"}, nil, "--metrics-listen (ORCH_METRICS_LISTEN): :9464 can be reached from other machines and there is no token"},
		{[]string{"--listen=example.com:80"}, nil, "can be reached from other machines"},
		{[]string{"--listen=8080"}, nil, "is no host:port"},
		{[]string{"--listen="}, nil, "--listen: is empty"},
		{[]string{"--listen=127.0.0.1:http"}, nil, "has no port of"},
		{[]string{"--listen=127.0.0.1:70000"}, nil, "has no port of"},
		{[]string{"--tls-key=key"}, nil, "--tls-key (ORCH_TLS_KEY): needs --tls-cert"},
		{[]string{"--tls-key=key", "--tls-cert=none"}, nil, "--tls-cert (ORCH_TLS_CERT): open none: file does not exist"},
		{[]string{"--tls-key=other", "--tls-cert=cert"}, nil, "--tls-cert and --tls-key: "},
		{[]string{"--max-startup-script-timeout=1m"}, nil, "must be less than --write-timeout"},
		{[]string{"--write-timeout=50s"}, nil, "must be less than --write-timeout"},
		{[]string{"--startup-script-timeout=56s"}, nil, "is more than --max-startup-script-timeout"},
		{[]string{"--auth-token=a", "--auth-token-file=token"}, nil, "is given twice"},
		{nil, map[string]string{"ORCH_AUTH_TOKEN": "a", "ORCH_AUTH_TOKEN_FILE": "token"}, "is given twice"},
		{nil, map[string]string{"ORCH_AUTH_TOKEN_FILE": "none"}, "ORCH_AUTH_TOKEN_FILE: open none"},
		{nil, map[string]string{"ORCH_AUTH_TOKEN_FILE": "spaces"}, "characters that a header cannot carry"},
		{nil, map[string]string{"ORCH_AUTH_TOKEN_FILE": "big"}, "more than"},
		{[]string{"--data-dir="}, nil, "--data-dir (ORCH_DATA_DIR): is needed"},
		{[]string{"--lease=100ms"}, nil, "100ms is less than 500ms"},
		{[]string{"--advertise=server-1:8080"}, nil, "is no URL such as https://server-1:8080"},
		{[]string{"--advertise=https://u:p@h/"}, nil, "is no URL"},
		{[]string{"--database-url=mysql:x"}, nil, "is no address such as postgres://"},
		{[]string{"--store=redis"}, nil, "neither sqlite, postgres nor memory"},
		{[]string{"--store=postgres"}, nil, "needs --database-url-file"},
		{[]string{"--store=memory"}, map[string]string{"DATABASE_URL": "postgres://x"}, "contradicts --database-url"},
		{[]string{"--fleet-id=01J00000000000000000000000"}, nil, "only --store=memory takes one"},
		{[]string{"--store=memory", "--fleet-id=x"}, nil, "is no fleet id"},
		{[]string{"--database-max-conns=2"}, nil, "not within 3 to 200"},
		{[]string{"--log-format=xml"}, nil, "neither text nor json"},
		{nil, map[string]string{"TOKEN_ENCRYPTION_KEY": strings.Repeat("z", 64)}, "64 hex digits"},
	} {
		_, err := load(t, append([]string{"--data-dir=/d"}, c.args...), c.vars, files)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %v: error %v, want %q", c.args, c.vars, err, c.want)
		}
	}
}

// The reference page and the table of settings say the same.
func TestReferenceNamesEverySetting(t *testing.T) {
	raw, err := os.ReadFile("../../docs/reference/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for i := range settings {
		st := &settings[i]
		for _, name := range []string{"`--" + st.flag + "`", "`" + st.env + "`"} {
			if len(strings.Trim(name, "`-")) > 0 && !strings.Contains(page, name) {
				t.Errorf("docs/reference/settings.md does not have %s", name)
			}
		}
	}
}

func keyPair(t *testing.T) (certPEM, keyPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}
