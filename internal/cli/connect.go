package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/fusevm/fuse/internal/api/client"
)

// server connects to where commands go.
func (a *app) server() (*client.API, error) {
	base, token, err := a.target()
	if err != nil {
		return nil, err
	}
	return client.New(base, client.Options{
		Token: token, UserAgent: "fuse-cli/" + a.Version, Transport: reach{base},
		Notice: func(text string) { a.progressf("%s", text) },
	})
}

// reach says which server could not be reached, and what to do about it.
type reach struct{ base string }

// RoundTrip implements http.RoundTripper.
func (t reach) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil && r.Context().Err() == nil {
		hint := "Is it running? 'fuse dev' starts one; 'fuse context list' shows where commands go"
		if cert := (*tls.CertificateVerificationError)(nil); errors.As(err, &cert) {
			hint = "To trust a certificate of your own, set SSL_CERT_FILE to a copy of it"
		}
		err = fmt.Errorf("reach the server at %s: %w\n%s", t.base, err, hint)
	}
	return resp, err
}

// target says where commands go: flags first, then a context that was named,
// then the environment, then the current context. A context's token is never
// sent to another server than its own.
func (a *app) target() (base, token string, err error) {
	base, token, file := a.url, a.token, a.tokenFile
	if token != "" && file != "" {
		return "", "", usagef("--token and --token-file are both given")
	}
	if a.contextName == "" {
		if base == "" {
			base = a.Getenv("FUSE_URL")
		}
		if token == "" && file == "" {
			token, file = a.Getenv("FUSE_TOKEN"), a.Getenv("FUSE_TOKEN_FILE")
		}
	}
	if noToken := token == "" && file == ""; base == "" || noToken || a.contextName != "" {
		x, err := a.fromContext()
		if err != nil {
			return "", "", err
		}
		if base == "" {
			base = x.BaseURL
		}
		if noToken && base == x.BaseURL {
			token, file = x.Token, x.TokenFile
		}
	}
	if base == "" {
		return "", "", &ExitError{Code: ExitFailed, Err: errors.New(
			"no server is known: start one with 'fuse dev', or name one with --url, FUSE_URL or 'fuse context add'")}
	}
	if token == "" && file != "" {
		if token, err = readToken(file); err != nil {
			return "", "", err
		}
	}
	return base, token, checkURL(base)
}

func checkURL(base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return usagef("server URL %q is not of the form http://HOST:PORT or https://HOST:PORT", base)
	}
	return nil
}

func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("read the token: %s is empty", file)
	}
	return token, nil
}

// fromContext returns the context in use; one without name means none.
func (a *app) fromContext() (Context, error) {
	path, err := a.configFile()
	if err != nil {
		if a.contextName == "" {
			return Context{}, nil // without a home directory there are none
		}
		return Context{}, err
	}
	c, err := LoadConfig(path)
	if err != nil {
		return Context{}, err
	}
	name := a.contextName
	if name == "" {
		name = c.CurrentContext
	}
	if name == "" {
		return Context{}, nil
	}
	found, ok := c.Find(name)
	if !ok {
		return Context{}, usagef("context %q is not in %s; known: %s", name, path, strings.Join(c.names(), ", "))
	}
	return found, nil
}

func (a *app) configFile() (string, error) {
	if a.configPath != "" {
		return a.configPath, nil
	}
	return DefaultConfigPath()
}
