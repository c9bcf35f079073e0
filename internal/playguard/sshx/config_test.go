package sshx_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
)

// home is a person's directory with this SSH configuration and these files.
func home(t *testing.T, config string, files ...string) sshx.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, "config") {
		text := "x"
		if f == "config" {
			text = config
		}
		if err := os.WriteFile(filepath.Join(dir, ".ssh", f), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return sshx.Config{File: filepath.Join(dir, ".ssh", "config"), Home: dir, User: "me", Agent: "/run/agent"}
}

const someConfig = `
Host box
  HostName %h.example.org
  User deploy
  Port 2200
  IdentityFile ~/.ssh/box_key
  UserKnownHostsFile ~/.ssh/hosts_of_box
  ProxyJump gate

Host gate
  HostName gate.example.org
  ProxyJump admin@outer:2222

Host outer
  IdentityAgent none
  HostKeyAlias outermost

Host list
  ProxyJump outer,gate

Host around
  ProxyJump around2
Host around2
  ProxyJump around

Host cmd
  ProxyCommand nc %h %p
Host token
  HostName %C
Host lost
  IdentityFile ~/.ssh/lost_key
Host odd
  Port 99999
`

func TestResolve(t *testing.T) {
	c := home(t, someConfig, "box_key", "id_ed25519", "known_hosts", "hosts_of_box")
	ssh := func(f string) []string { return []string{filepath.Join(c.Home, ".ssh", f)} }
	usual := sshx.Hop{Agent: "/run/agent", User: "me", Keys: ssh("id_ed25519"), KnownHosts: ssh("known_hosts")}
	hop := func(alias, address string, change func(*sshx.Hop)) sshx.Hop {
		h := usual
		h.Alias, h.Address, h.Pinned = alias, address, address
		if change != nil {
			change(&h)
		}
		return h
	}
	outer := hop("outer", "outer:2222", func(h *sshx.Hop) { h.User, h.Agent, h.Pinned = "admin", "", "outermost:22" })
	gate := hop("gate", "gate.example.org:22", nil)
	for _, test := range []struct {
		destination string
		want        []sshx.Hop
	}{
		{"10.0.0.1", []sshx.Hop{hop("10.0.0.1", "10.0.0.1:22", nil)}},
		{"root@10.0.0.1:2022", []sshx.Hop{hop("10.0.0.1", "10.0.0.1:2022", func(h *sshx.Hop) { h.User = "root" })}},
		{"ssh://root@[fd00::1]:2022/", []sshx.Hop{hop("fd00::1", "[fd00::1]:2022", func(h *sshx.Hop) { h.User = "root" })}},
		{"fd00::1", []sshx.Hop{hop("fd00::1", "[fd00::1]:22", nil)}},
		{"box", []sshx.Hop{outer, gate, hop("box", "box.example.org:2200", func(h *sshx.Hop) {
			h.User, h.Keys, h.KnownHosts = "deploy", ssh("box_key"), ssh("hosts_of_box")
		})}},
		{"list", []sshx.Hop{hop("outer", "outer:22", func(h *sshx.Hop) { h.Agent, h.Pinned = "", "outermost:22" }), gate, hop("list", "list:22", nil)}},
	} {
		got, err := c.Resolve(test.destination)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", test.destination, err, got, test.want)
		}
	}
	for destination, says := range map[string]string{
		"around": "lead back", "cmd": "ProxyCommand", "token": "token", "lost": "lost_key", "odd": "1 to 65535",
		"": "want an alias", "-oProxyCommand=x": "want an alias", "a b": "want an alias", "@host": "want an alias", "host:": "want an alias", "a;b": "want an alias",
	} {
		if _, err := c.Resolve(destination); fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", destination, err)
		}
	}
	for _, broken := range []string{"Match exec \"true\"\n  User x\n", "Match user me\n  User x\n"} {
		if _, err := home(t, broken).Resolve("x"); fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), "Match") {
			t.Errorf("%q: %v", broken, err)
		}
	}
	if hops, err := (sshx.Config{File: "/nowhere/config", Home: "/nowhere", User: "me"}).Resolve("x"); err != nil || len(hops) != 1 {
		t.Errorf("without a file: %+v %v", hops, err)
	}
}

// What a person's known_hosts say of a host, hashed or not.
func TestKnown(t *testing.T) {
	c := home(t, "Host b\n  HostName 10.0.0.2\n", "known_hosts")
	signer, err := ssh.ParsePrivateKey(sshdtest.NewKey(t))
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	text := "[10.0.0.1]:2200 " + line + "\n" + knownhosts.HashHostname("10.0.0.2") + " " + line + "\n"
	if err := os.WriteFile(filepath.Join(c.Home, ".ssh", "known_hosts"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for destination, want := range map[string][]string{"10.0.0.1:2200": {line}, "b": {line}, "10.0.0.1": nil, "other": nil} {
		hops, err := c.Resolve(destination)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := hops[0].Known(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q, %v", destination, got, err)
		}
	}
}
