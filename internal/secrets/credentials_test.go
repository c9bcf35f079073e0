package secrets_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/secrets"
)

// A client that trusts this certificate alone talks to the guest, also when
// the guest's clock is a few hours behind or years ahead.
func TestCredentialsServeTLS(t *testing.T) {
	c, err := secrets.NewVMCredentials("fuse-" + strings.Repeat("A_b.", 25))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(c.Token) || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(c.MachineID) {
		t.Errorf("token of %d, machine id %q", len(c.Token), c.MachineID)
	}
	pair, err := tls.X509KeyPair(c.CertPEM, c.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CertPEM) {
		t.Fatal("the certificate is not PEM")
	}
	for _, ahead := range []time.Duration{-12 * time.Hour, 0, 5 * 365 * 24 * time.Hour} {
		server, client := net.Pipe()
		go func() {
			conn := tls.Server(server, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})
			io.WriteString(conn, "hello")
			conn.Close()
		}()
		conn := tls.Client(client, &tls.Config{
			RootCAs: roots, ServerName: secrets.GuestServerName, MinVersion: tls.VersionTLS13,
			Time: func() time.Time { return time.Now().Add(ahead) },
		})
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
			t.Errorf("%v ahead: %q, %v", ahead, got, err)
		}
		client.Close()
	}
}

func TestCredentialsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 20 {
		c, err := secrets.NewVMCredentials("vm")
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(c.CertPEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{c.Token, c.MachineID, string(c.CertPEM), string(c.KeyPEM), cert.SerialNumber.String()} {
			if seen[v] {
				t.Error("two guests share a value")
			}
			seen[v] = true
		}
	}
}

func TestRedact(t *testing.T) {
	for name, tt := range map[string]struct {
		text    string
		secrets []string
		want    string
	}{
		"nothing to do":      {"plain", nil, "plain"},
		"one":                {"a hunter22 b", []string{"hunter22"}, "a [REDACTED] b"},
		"twice":              {"hunter22hunter22.", []string{"hunter22"}, "[REDACTED]."},
		"short ones stay":    {"yes 1 secret7", []string{"yes", "1", "secret7", ""}, "yes 1 secret7"},
		"one in another":     {"x password123 y", []string{"password", "password123"}, "x [REDACTED] y"},
		"overlapping":        {"[abcdefghijkl]", []string{"abcdefgh", "efghijkl"}, "[[REDACTED]]"},
		"overlapping itself": {"<aaaaaaaaaaa>", []string{"aaaaaaaa"}, "<[REDACTED]>"},
		"many lines":         {"one\nsecret-1\ntwo", []string{"secret-1"}, "one\n[REDACTED]\ntwo"},
	} {
		values := map[string]string{}
		for i, s := range tt.secrets {
			values[string(rune('a'+i))] = s
		}
		if got := secrets.Redact(tt.text, values); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("a hunter22 b", "hunter22", "er22 b--")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		out := secrets.Redact(text, map[string]string{"a": a, "b": b})
		// The mark itself may bring a value back only if it holds part of one.
		for _, v := range []string{a, b} {
			if len(v) >= 8 && !strings.ContainsAny(v, secrets.Redacted) && strings.Contains(out, v) {
				t.Errorf("%q is left in %q", v, out)
			}
		}
	})
}
