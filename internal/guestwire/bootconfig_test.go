package guestwire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func validConfig() BootConfig {
	return BootConfig{
		VMID: "fuse-task", Hostname: "fuse-task", MachineID: strings.Repeat("0123456789abcdef", 2), Token: "s3cret", CertPEM: "CERT", KeyPEM: "KEY",
		Root: BootRoot{Serial: "root", Grow: true},
		Net: BootNetwork{
			Address: "10.0.0.2/30", Gateway: "10.0.0.1", GatewayMAC: "02:00:00:00:00:01", MTU: 1500, Nameservers: []string{"1.1.1.1", "fd00::1"},
		},
		Image: BootImage{Env: map[string]string{"A": "b=c"}, Workdir: "/srv", User: "app"},
	}
}

func TestBootConfigRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z0-9+/=.-]{1,60}`)
		c := BootConfig{
			VMID: text.Draw(t, "vm"), Token: text.Draw(t, "token"), CertPEM: text.Draw(t, "cert") + "\n", KeyPEM: text.Draw(t, "key"),
			Hostname:  rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?`).Draw(t, "hostname"),
			MachineID: rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "id"),
			Root:      BootRoot{Serial: rapid.StringMatching(`[a-z]{0,20}`).Draw(t, "serial"), Grow: rapid.Bool().Draw(t, "grow")},
			Net: BootNetwork{
				Address: fmt.Sprintf("10.%d.0.2/30", rapid.IntRange(0, 255).Draw(t, "net")),
				MTU:     rapid.SampledFrom([]int{0, 576, 1500, 65535}).Draw(t, "mtu"),
			},
			Image: BootImage{Env: rapid.MapOfN(rapid.StringMatching(`[A-Z_]{1,9}`), rapid.StringMatching(`[^\x00]*`), 1, 5).Draw(t, "env")},
		}
		data, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseBootConfig(data)
		if diff := cmp.Diff(c, got); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
	})
}

func TestBootConfigIsChecked(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, says string
		change     func(*BootConfig)
	}{
		{"valid", "", func(*BootConfig) {}},
		{"no network", "", func(c *BootConfig) { c.Net, c.LinkListen = BootNetwork{}, "127.0.0.1:1" }},
		{"no token", "token is required", func(c *BootConfig) { c.Token = "" }},
		{"token with a line break", "white space", func(c *BootConfig) { c.Token = "a\nb" }},
		{"no certificate", "cert_pem is required", func(c *BootConfig) { c.CertPEM = "" }},
		{"no key", "key_pem is required", func(c *BootConfig) { c.KeyPEM = "" }},
		{"no vm id", "vm_id is required", func(c *BootConfig) { c.VMID = "" }},
		{"no hostname", "hostname is required", func(c *BootConfig) { c.Hostname = "" }},
		{"long hostname", "63", func(c *BootConfig) { c.Hostname = strings.Repeat("a", 64) }},
		{"hostname with a dot", "hyphens", func(c *BootConfig) { c.Hostname = "a.b" }},
		{"hostname that ends in a hyphen", "hyphens", func(c *BootConfig) { c.Hostname = "a-" }},
		{"short machine id", "32", func(c *BootConfig) { c.MachineID = "abc" }},
		{"capital machine id", "32", func(c *BootConfig) { c.MachineID = strings.Repeat("A", 32) }},
		{"relative device", "root.device", func(c *BootConfig) { c.Root.Device = "vda" }},
		{"long serial", "20", func(c *BootConfig) { c.Root.Serial = strings.Repeat("s", 21) }},
		{"address without prefix", "net.address", func(c *BootConfig) { c.Net.Address = "10.0.0.2" }},
		{"gateway without address", "needs net.address", func(c *BootConfig) { c.Net.Address = "" }},
		{"gateway that is none", "net.gateway", func(c *BootConfig) { c.Net.Gateway = "router" }},
		{"mac that is none", "net.gateway_mac", func(c *BootConfig) { c.Net.GatewayMAC = "02:00" }},
		{"mac without gateway", "needs net.gateway", func(c *BootConfig) { c.Net.Gateway = "" }},
		{"small mtu", "net.mtu 100", func(c *BootConfig) { c.Net.MTU = 100 }},
		{"resolver that is none", "net.nameservers", func(c *BootConfig) { c.Net.Nameservers = []string{"dns\nsearch evil"} }},
		{"relative workdir", "image.workdir", func(c *BootConfig) { c.Image.Workdir = "srv" }},
		{"variable with =", "image.env", func(c *BootConfig) { c.Image.Env = map[string]string{"A=": ""} }},
		{"listen without port", "link_listen", func(c *BootConfig) { c.LinkListen = "10.0.0.2" }},
		{"nowhere to listen", "link_listen is required", func(c *BootConfig) { c.Net = BootNetwork{} }},
		{"too long", "more than the 1048576 allowed", func(c *BootConfig) { c.CertPEM = strings.Repeat("x", MaxBootConfig) }},
	}
	for _, tt := range tests {
		c := validConfig()
		tt.change(&c)
		_, encodeErr := c.Encode()
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		_, parseErr := ParseBootConfig(data)
		for _, err := range []error{encodeErr, parseErr} {
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
			}
		}
	}
}

func TestBootConfigReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	c := validConfig()
	c.Token, c.Hostname, c.Net.MTU = "", "", 1
	_, err := c.Encode()
	for _, want := range []string{"token", "hostname", "net.mtu"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestBootConfigAddresses(t *testing.T) {
	t.Parallel()
	c := validConfig()
	if c.LinkAddr() != "10.0.0.2:9551" || c.AgentAddr() != ":9550" {
		t.Errorf("%s and %s", c.LinkAddr(), c.AgentAddr())
	}
	c.Net.Address, c.AgentListen = "fd00::2/64", "127.0.0.1:1"
	if c.LinkAddr() != "[fd00::2]:9551" || c.AgentAddr() != "127.0.0.1:1" {
		t.Errorf("%s and %s", c.LinkAddr(), c.AgentAddr())
	}
	c.LinkListen = "127.0.0.1:2"
	if c.LinkAddr() != "127.0.0.1:2" {
		t.Errorf("%s", c.LinkAddr())
	}
}

// A newer host may say more than this build knows, and what it says wrongly is
// never repeated, since it may be a secret.
func TestParseBootConfig(t *testing.T) {
	t.Parallel()
	data, err := validConfig().Encode()
	if err != nil {
		t.Fatal(err)
	}
	newer := append([]byte(`{"later_field":{"a":1},`), data[1:]...)
	if _, err := ParseBootConfig(newer); err != nil {
		t.Errorf("an unknown field: %v", err)
	}
	for _, broken := range []string{``, `null`, `{}`, `[]`, `{"token":"hunter2"`, `{"token":7,"x":"hunter2"}`, string(data) + `{"hunter2":1}`} {
		if _, err := ParseBootConfig([]byte(broken)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", broken, err)
		}
	}
}

func FuzzParseBootConfig(f *testing.F) {
	data, err := validConfig().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"token":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseBootConfig(data)
		if err != nil {
			return
		}
		again, err := c.Encode()
		if err != nil {
			return // valid, but too long once its characters are escaped
		}
		if _, err := ParseBootConfig(again); err != nil {
			t.Errorf("what was read and written again is refused: %v", err)
		}
	})
}
