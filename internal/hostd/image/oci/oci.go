// Package oci reads container images from registries, OCI layouts and the
// archives of "docker save", and applies their layers to a tree. What it reads
// is held to the digests that name it; whatever goes wrong it says in words
// for the caller, with a reason that programs can tell apart.
package oci

import (
	"context"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/fleet"
)

// Auth is a login to one registry. The zero value means the machine's own
// docker configuration and its credential helpers.
type Auth struct {
	Username, Password, IdentityToken, RegistryToken string
}

// Config says how images are read. The zero value is of use.
type Config struct {
	Arch string // of the images wanted, in Go's words; empty: amd64
	Auth Auth
	// Transport reaches registries; nil means one that refuses link-local
	// addresses, where clouds keep their secrets.
	Transport http.RoundTripper
	// Stall is how long a transfer may stand still; 30 s.
	Stall time.Duration
	// Parallel is how many layers are fetched at a time; 4.
	Parallel int
	// Tries is how often a layer is begun; 4.
	Tries int
}

func (c Config) withDefaults() Config {
	if c.Arch == "" {
		c.Arch = fleet.ArchAMD64
	}
	if c.Stall <= 0 {
		c.Stall = 30 * time.Second
	}
	if c.Parallel <= 0 {
		c.Parallel = 4
	}
	if c.Tries <= 0 {
		c.Tries = 4
	}
	if c.Transport == nil {
		c.Transport = defaultTransport
	}
	return c
}

var defaultTransport = newTransport()

func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: notLinkLocal}).DialContext
	t.ResponseHeaderTimeout = 30 * time.Second
	t.TLSHandshakeTimeout = 10 * time.Second
	return t
}

// notLinkLocal keeps a caller's reference from reaching the metadata service
// of the cloud that this machine may run in.
func notLinkLocal(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified()) {
		return errLinkLocal
	}
	return nil
}

// IsReference reports whether an image is named by a reference to a registry
// rather than by the name of an image that hosts have.
func IsReference(image string) bool { return strings.ContainsAny(image, "/:@") }

// Reference is a parsed reference.
type Reference struct {
	Given  string // as the caller wrote it
	Name   string // complete: registry, repository, tag or digest
	Digest string // sha256:…; empty where the reference names a tag
	ref    name.Reference
}

// Parse reads a reference. A short one is Docker Hub's, as everywhere.
func Parse(given string) (Reference, error) {
	if len(given) > 512 {
		return Reference{}, badReference(given[:80]+"…", nil)
	}
	ref, err := name.ParseReference(given)
	if err != nil {
		return Reference{}, badReference(given, err)
	}
	r := Reference{Given: given, Name: ref.Name(), ref: ref}
	if d, ok := ref.(name.Digest); ok {
		r.Digest = d.DigestStr()
	}
	return r, nil
}

// Pinned is the reference with its digest, tag included, as it is recorded.
func (r Reference) Pinned(digest string) string {
	if r.Digest != "" {
		return r.Given
	}
	return r.Given + "@" + digest
}

// Registry is the host that serves the reference.
func (r Reference) Registry() string { return r.ref.Context().RegistryStr() }

// RepoTag is the reference without a digest, for showing.
func (r Reference) RepoTag() string { s, _, _ := strings.Cut(r.Given, "@"); return s }

// Process is what an image says of the processes run in it.
type Process struct {
	Env        map[string]string
	User       string
	Workdir    string
	Entrypoint []string
	Cmd        []string
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func processOf(c v1.Config) Process {
	p := Process{Env: map[string]string{"PATH": defaultPath}, User: c.User, Entrypoint: c.Entrypoint, Cmd: c.Cmd}
	for _, kv := range c.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" && !strings.ContainsRune(kv, 0) {
			p.Env[k] = v
		}
	}
	if c.WorkingDir != "" {
		p.Workdir = path.Join("/", c.WorkingDir)
	}
	return p
}

// Image is an image that was found, nothing of it read but manifest and
// configuration.
type Image struct {
	// Digest identifies the image for this architecture: its manifest's, or
	// its configuration's for an archive without manifest.
	Digest string
	// Resolved is the digest that the reference stood for: an index's, if the
	// image has several architectures.
	Resolved string
	Arch     string
	Created  time.Time
	Process  Process
	// Bytes is what the layers take compressed; zero if that is not known.
	Bytes  int64
	layers []layer
}

// Layers is the number of layers.
func (i *Image) Layers() int { return len(i.layers) }

type layer struct {
	digest v1.Hash // of what open gives
	diffID v1.Hash // of what that holds, uncompressed
	size   int64   // of what open gives; negative: not known
	remote bool
	open   func(ctx context.Context) (io.ReadCloser, error)
}

// keychain finds the login for a registry.
func (c Config) keychain() authn.Keychain {
	if c.Auth == (Auth{}) {
		return authn.DefaultKeychain
	}
	return fixed{authn.FromConfig(authn.AuthConfig{
		Username: c.Auth.Username, Password: c.Auth.Password,
		IdentityToken: c.Auth.IdentityToken, RegistryToken: c.Auth.RegistryToken,
	})}
}

type fixed struct{ a authn.Authenticator }

func (f fixed) Resolve(authn.Resource) (authn.Authenticator, error) { return f.a, nil }

// Login is what this machine's docker configuration says of the reference's
// registry; zero if nothing.
func Login(r Reference) Auth {
	a, err := authn.DefaultKeychain.Resolve(r.ref.Context())
	if err != nil {
		return Auth{}
	}
	c, err := a.Authorization()
	if err != nil || c == nil {
		return Auth{}
	}
	return Auth{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}
}
