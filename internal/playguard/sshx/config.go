package sshx

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kevinburke/ssh_config"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/fusevm/fuse/internal/fleet"
)

// Hop is one host on a way, as a person's SSH configuration describes it.
type Hop struct {
	Alias   string // as it was asked for, without user and port
	Address string // host:port
	User    string
	// Keys are paths of private keys that exist, in the order to try them.
	Keys []string
	// Agent is the socket of an SSH agent; empty for none.
	Agent      string
	KnownHosts []string // paths of known_hosts files that exist
	Pinned     string   // the name that known_hosts files have it under
}

// Config is where a person's SSH settings are. The zero value is what ssh
// itself takes; a missing file is an empty one.
type Config struct {
	File string // ~/.ssh/config
	Home string
	User string // for hosts without one
	// Agent is the socket that SSH_AUTH_SOCK names; empty for none.
	Agent string
}

// LocalConfig is the configuration of whoever runs this process.
func LocalConfig() (Config, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return Config{}, fmt.Errorf("find the home directory: %w", err)
	}
	user := os.Getenv("USER")
	if user == "" {
		user = "root"
	}
	return Config{File: filepath.Join(home, ".ssh", "config"), Home: home, User: user, Agent: os.Getenv("SSH_AUTH_SOCK")}, nil
}

// unsupported are settings without which a host cannot be reached as meant,
// and that Fuse does not know.
var unsupported = []string{"ProxyCommand", "CertificateFile", "PKCS11Provider", "CanonicalizeHostname"}

// Resolve turns what a person writes (an alias, user@host, host:port, or an
// ssh:// address) into the way there: jump hosts nearest first, the host last.
func (c Config) Resolve(destination string) ([]Hop, error) {
	parsed, err := c.read()
	if err != nil {
		return nil, err
	}
	return resolver{c, parsed}.way(destination, nil)
}

func (c Config) read() (*ssh_config.Config, error) {
	raw, err := os.ReadFile(c.File)
	switch {
	case errors.Is(err, fs.ErrNotExist) || c.File == "":
		raw = nil
	case err != nil:
		return nil, fmt.Errorf("read the SSH configuration: %w", err)
	}
	parsed, err := ssh_config.DecodeBytes(raw)
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "%s: %s", c.File, strings.TrimPrefix(err.Error(), "ssh_config: ")).
			With(fleet.DetailRemedy, "name the host as user@host:port and give the key with --identity")
	}
	return parsed, nil
}

type resolver struct {
	Config
	file *ssh_config.Config
}

// way resolves one destination and, unless it is inside a list of jumps, what
// it is to be reached through.
func (r resolver) way(destination string, seen []string) ([]Hop, error) {
	hop, err := r.hop(destination)
	if err != nil {
		return nil, err
	}
	if slices.Contains(seen, hop.Alias) || len(seen) > maxJumps {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "%s: the jump hosts of %s lead back to it, or are more than %d", r.File, hop.Alias, maxJumps)
	}
	jumps := r.get(hop.Alias, "ProxyJump")
	if jumps == "" || strings.EqualFold(jumps, "none") {
		return []Hop{hop}, nil
	}
	var out []Hop
	for i, jump := range strings.Split(jumps, ",") {
		jump = strings.TrimSpace(jump)
		if i > 0 { // the ones before it are the way to it
			h, err := r.hop(jump)
			if err != nil {
				return nil, err
			}
			out = append(out, h)
			continue
		}
		if out, err = r.way(jump, append(seen, hop.Alias)); err != nil {
			return nil, err
		}
	}
	return append(out, hop), nil
}

func (r resolver) get(alias, key string) string {
	v, err := r.file.Get(alias, key)
	if err != nil {
		return ""
	}
	return strings.Trim(v, `"`)
}

func (r resolver) hop(destination string) (Hop, error) {
	user, host, port, err := splitDestination(destination)
	if err != nil {
		return Hop{}, err
	}
	for _, key := range unsupported {
		if v := r.get(host, key); v != "" && !strings.EqualFold(v, "none") && !strings.EqualFold(v, "no") {
			return Hop{}, fleet.Errorf(fleet.CodeInvalidArgument, "%s sets %s for %s, which Fuse does not support", r.File, key, host).
				With(fleet.DetailRemedy, "use ProxyJump for hosts in between and IdentityFile or an agent for keys, or name the host as user@host:port")
		}
	}
	h := Hop{Alias: host, User: user, Agent: r.agent(host)}
	if h.User == "" {
		h.User = r.get(host, "User")
	}
	if h.User == "" {
		h.User = r.User
	}
	if port == "" {
		port = r.get(host, "Port")
	}
	if port == "" {
		port = "22"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return Hop{}, fleet.Errorf(fleet.CodeInvalidArgument, "port %.20q of %s: want 1 to 65535", port, host)
	}
	name := host
	if v := r.get(host, "HostName"); v != "" {
		if name, err = r.expand(v, Hop{Alias: host, User: h.User, Address: host + ":" + port}); err != nil {
			return Hop{}, err
		}
	}
	h.Address = net.JoinHostPort(name, port)
	h.Pinned = h.Address
	if v := r.get(host, "HostKeyAlias"); v != "" {
		h.Pinned = net.JoinHostPort(v, "22")
	}
	if h.Keys, err = r.paths(h, "IdentityFile", "~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"); err != nil {
		return Hop{}, err
	}
	h.KnownHosts, err = r.paths(h, "UserKnownHostsFile", "~/.ssh/known_hosts")
	return h, err
}

func (r resolver) agent(host string) string {
	switch v := r.get(host, "IdentityAgent"); {
	case v == "" || v == "SSH_AUTH_SOCK":
		return r.Agent
	case strings.EqualFold(v, "none"):
		return ""
	default:
		return r.tilde(strings.Replace(v, "$SSH_AUTH_SOCK", r.Agent, 1))
	}
}

// paths are the files of a setting that exist. A file that is named but is not
// there is an error for keys: ssh would silently offer something else.
func (r resolver) paths(h Hop, key string, usual ...string) ([]string, error) {
	all, err := r.file.GetAll(h.Alias, key)
	if err != nil {
		return nil, fmt.Errorf("read the SSH configuration: %w", err)
	}
	named := len(all) > 0
	if !named {
		all = usual
	}
	var out []string
	for _, v := range all {
		for _, f := range strings.Fields(strings.ReplaceAll(v, `"`, "")) {
			if strings.EqualFold(f, "none") {
				continue
			}
			if f, err = r.expand(f, h); err != nil {
				return nil, err
			}
			switch _, err := os.Stat(f); {
			case err == nil:
				out = append(out, f)
			case named && key == "IdentityFile":
				return nil, fleet.Errorf(fleet.CodeInvalidArgument, "%s names the key %s for %s, which cannot be read", r.File, f, h.Alias)
			}
		}
	}
	return out, nil
}

func (r resolver) tilde(p string) string {
	if p == "~" || strings.HasPrefix(p, "~/") {
		return r.Home + p[1:]
	}
	return p
}

// expand fills in the tokens that ssh knows for host names and paths.
func (r resolver) expand(text string, h Hop) (string, error) {
	text = r.tilde(text)
	host, port, err := net.SplitHostPort(h.Address)
	if err != nil {
		host, port = h.Alias, "22"
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			out.WriteByte(text[i])
			continue
		}
		i++
		values := map[byte]string{'%': "%", 'h': host, 'n': h.Alias, 'p': port, 'r': h.User, 'u': r.User, 'd': r.Home}
		v, ok := "", false
		if i < len(text) {
			v, ok = values[text[i]]
		}
		if !ok {
			return "", fleet.Errorf(fleet.CodeInvalidArgument, "%s: %q has a token that Fuse does not know; it knows %%h %%n %%p %%r %%u %%d", r.File, text)
		}
		out.WriteString(v)
	}
	return out.String(), nil
}

// splitDestination takes user@host, host:port, [address]:port and ssh:// apart.
func splitDestination(text string) (user, host, port string, err error) {
	bad := func() (string, string, string, error) {
		return "", "", "", fleet.Errorf(fleet.CodeInvalidArgument, "SSH destination %.100q: want an alias, user@host or user@host:port", text)
	}
	rest := strings.TrimSuffix(strings.TrimPrefix(text, "ssh://"), "/")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if user, rest = rest[:at], rest[at+1:]; user == "" {
			return bad()
		}
	}
	host = rest
	switch {
	case strings.HasPrefix(rest, "["):
		if host, port, err = net.SplitHostPort(rest); err != nil {
			host, port = strings.Trim(rest, "[]"), ""
		}
	case strings.Count(rest, ":") == 1:
		host, port, _ = strings.Cut(rest, ":")
		if port == "" {
			return bad()
		}
	}
	if host == "" || strings.HasPrefix(host, "-") || strings.ContainsAny(host+user, " \t\r\n\x00/'\"$`;&|<>") {
		return bad()
	}
	return user, host, port, nil
}

// Known lists the keys that a person's known_hosts files have for a host, in
// authorized_keys form.
func (h Hop) Known() ([]string, error) {
	if len(h.KnownHosts) == 0 {
		return nil, nil
	}
	check, err := knownhosts.New(h.KnownHosts...)
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "known hosts: %s", strings.TrimPrefix(err.Error(), "knownhosts: "))
	}
	var out []string
	var key *knownhosts.KeyError
	// The only question that a callback answers is whether a key is right; for
	// one that cannot be, it says which would be.
	if err := check(h.Pinned, &net.TCPAddr{IP: net.IPv4zero}, noKey{}); errors.As(err, &key) {
		for _, k := range key.Want {
			out = append(out, string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(k.Key))))
		}
	}
	return out, nil
}

// noKey is the key of no host.
type noKey struct{}

func (noKey) Type() string                        { return "none" }
func (noKey) Marshal() []byte                     { return []byte("none") }
func (noKey) Verify([]byte, *ssh.Signature) error { return errors.New("no key") }
