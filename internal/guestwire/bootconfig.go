package guestwire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"
)

// Where the initramfs keeps what the guest agent reads before it mounts the
// root. Both module lists hold one path a line, in the order of loading; the
// modules are plain .ko files. Those in LateModulesPath are loaded once the
// agent answers and may be absent.
const (
	BootConfigPath  = "/fuse-init/config.json"
	ModulesPath     = "/fuse-init/modules"
	LateModulesPath = "/fuse-init/modules.late"
)

// MaxBootConfig bounds the encoded boot configuration, in bytes.
const MaxBootConfig = 1 << 20

// BootConfig is what makes one guest different from the next. It holds
// secrets: it reaches the guest in its initramfs, which the guest deletes.
type BootConfig struct {
	VMID      string `json:"vm_id"`
	Hostname  string `json:"hostname"`
	MachineID string `json:"machine_id"` // 32 lower-case hex digits
	Token     string `json:"token"`      // of every call to the guest
	// CertPEM and KeyPEM are the certificate of the published port.
	CertPEM string `json:"cert_pem"`
	KeyPEM  string `json:"key_pem"`

	Root  BootRoot    `json:"root"`
	Net   BootNetwork `json:"net"`
	Image BootImage   `json:"image,omitzero"`
	// Services are the images that services of the manifest bring along.
	Services []BootServiceImage `json:"services,omitempty"`
	// LinkListen and AgentListen are host:port; empty means LinkPort at the
	// guest's own address, and AgentPort at every address.
	LinkListen  string `json:"link_listen,omitempty"`
	AgentListen string `json:"agent_listen,omitempty"`
}

// BootRoot says which disk holds the root filesystem, an ext4.
type BootRoot struct {
	// Serial is the virtio-blk serial of the disk. It goes before Device.
	Serial string `json:"serial,omitempty"`
	Device string `json:"device,omitempty"` // empty: /dev/vda
	// Grow extends the filesystem to the size of its disk.
	Grow bool `json:"grow,omitempty"`
}

// BootNetwork is the guest's one interface, eth0. Without an address there is
// loopback only.
type BootNetwork struct {
	Address string `json:"address,omitempty"` // with prefix: 10.0.0.2/30
	Gateway string `json:"gateway,omitempty"`
	// GatewayMAC becomes a permanent neighbour, so that a snapshot restored
	// elsewhere needs no address resolution.
	GatewayMAC  string   `json:"gateway_mac,omitempty"`
	MTU         int      `json:"mtu,omitempty"` // zero: the driver's
	Nameservers []string `json:"nameservers,omitempty"`
}

// BootImage is what the image says of the processes run in it.
type BootImage struct {
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"` // empty: /
	User    string            `json:"user,omitempty"`    // empty: root
	// Entrypoint and Cmd are what the image runs when it is run as a service.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
}

// BootServiceImage is an image that services run in, on a disk of its own that
// cannot be written.
type BootServiceImage struct {
	// Name is what the host was asked for: a name, or a reference with its digest.
	Name   string `json:"name"`
	Serial string `json:"serial"` // of the disk
	BootImage
}

// ParseBootConfig reads and checks an encoded boot configuration. Fields it
// does not know are ignored: a newer host may boot an older guest agent.
func ParseBootConfig(data []byte) (BootConfig, error) {
	if len(data) > MaxBootConfig {
		return BootConfig{}, fmt.Errorf("boot configuration is %d bytes long, more than the %d allowed", len(data), MaxBootConfig)
	}
	var c BootConfig
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&c); err != nil {
		// The decoder's own text may quote a secret.
		return BootConfig{}, fmt.Errorf("boot configuration is not valid JSON (at byte %d)", dec.InputOffset())
	}
	if dec.More() {
		return BootConfig{}, errors.New("boot configuration holds more than one JSON value")
	}
	if err := c.Validate(); err != nil {
		return BootConfig{}, err
	}
	return c, nil
}

// Encode checks c and returns it as ParseBootConfig reads it.
func (c BootConfig) Encode() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode boot configuration: %w", err)
	}
	if len(data) > MaxBootConfig {
		return nil, fmt.Errorf("boot configuration is %d bytes long, more than the %d allowed", len(data), MaxBootConfig)
	}
	return data, nil
}

// Validate reports everything that is wrong with c, without any secret. A
// guest without certificate or token is refused: it would be open.
func (c BootConfig) Validate() error {
	errs := []error{
		required("vm_id", c.VMID), required("token", c.Token), required("cert_pem", c.CertPEM), required("key_pem", c.KeyPEM),
		checkHostname(c.Hostname), checkMachineID(c.MachineID),
		c.Root.validate(), c.Net.validate(), c.Image.validate(),
		validateServices(c.Services), checkListen("link_listen", c.LinkListen), checkListen("agent_listen", c.AgentListen),
	}
	if strings.ContainsAny(c.Token, " \t\r\n") {
		errs = append(errs, errors.New("token must not contain white space"))
	}
	if c.LinkListen == "" && c.Net.Address == "" {
		errs = append(errs, errors.New("link_listen is required where the guest has no address"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("boot configuration: %w", err)
	}
	return nil
}

// LinkAddr is where the guest serves the protocol.
func (c BootConfig) LinkAddr() string {
	if c.LinkListen != "" {
		return c.LinkListen
	}
	ip, _, _ := strings.Cut(c.Net.Address, "/")
	return net.JoinHostPort(ip, fmt.Sprint(LinkPort))
}

// AgentAddr is where the guest serves its published port.
func (c BootConfig) AgentAddr() string {
	if c.AgentListen != "" {
		return c.AgentListen
	}
	return fmt.Sprintf(":%d", AgentPort)
}

func (r BootRoot) validate() error {
	if r.Device != "" && (!path.IsAbs(r.Device) || path.Clean(r.Device) != r.Device) {
		return fmt.Errorf("root.device %q must be an absolute clean path", r.Device)
	}
	if len(r.Serial) > 20 {
		return fmt.Errorf("root.serial %q is longer than the 20 bytes of a virtio-blk serial", r.Serial)
	}
	return nil
}

func validateServices(images []BootServiceImage) error {
	var errs []error
	for _, i := range images {
		if i.Name == "" || i.Serial == "" || len(i.Serial) > 20 {
			errs = append(errs, fmt.Errorf("services: the image %q with the serial %q needs a name and a serial of at most 20 bytes", i.Name, i.Serial))
		}
		errs = append(errs, i.validate())
	}
	return errors.Join(errs...)
}

func (n BootNetwork) validate() error {
	var errs []error
	if n.Address == "" {
		if n.Gateway != "" || n.GatewayMAC != "" {
			errs = append(errs, errors.New("net.gateway needs net.address"))
		}
	} else if _, err := netip.ParsePrefix(n.Address); err != nil {
		errs = append(errs, fmt.Errorf("net.address %q must be an address with a prefix length, like 10.0.0.2/30", n.Address))
	}
	if n.Gateway != "" {
		if _, err := netip.ParseAddr(n.Gateway); err != nil {
			errs = append(errs, fmt.Errorf("net.gateway %q must be an address", n.Gateway))
		}
	}
	if n.GatewayMAC != "" {
		if mac, err := net.ParseMAC(n.GatewayMAC); err != nil || len(mac) != 6 {
			errs = append(errs, fmt.Errorf("net.gateway_mac %q must be like 02:00:00:00:00:01", n.GatewayMAC))
		}
		if n.Gateway == "" {
			errs = append(errs, errors.New("net.gateway_mac needs net.gateway"))
		}
	}
	if n.MTU != 0 && (n.MTU < 576 || n.MTU > 65535) {
		errs = append(errs, fmt.Errorf("net.mtu %d must be 576 to 65535, or 0 for the driver's", n.MTU))
	}
	for _, ns := range n.Nameservers {
		if _, err := netip.ParseAddr(ns); err != nil {
			errs = append(errs, fmt.Errorf("net.nameservers: %q must be an address", ns))
		}
	}
	return errors.Join(errs...)
}

func (i BootImage) validate() error {
	var errs []error
	if i.Workdir != "" && !path.IsAbs(i.Workdir) {
		errs = append(errs, fmt.Errorf("image.workdir %q must be an absolute path", i.Workdir))
	}
	for k, v := range i.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			errs = append(errs, fmt.Errorf("image.env: %q is no environment variable", k))
		}
	}
	return errors.Join(errs...)
}

func required(name, value string) error {
	if value == "" {
		return fmt.Errorf("%s is required", name)
	}
	return nil
}

func checkHostname(h string) error {
	if h == "" {
		return errors.New("hostname is required")
	}
	if len(h) > 63 {
		return fmt.Errorf("hostname is %d bytes long, more than the 63 allowed", len(h))
	}
	for i, r := range h {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || (r == '-' && i > 0 && i < len(h)-1)
		if !ok {
			return fmt.Errorf("hostname %q must be letters, digits and inner hyphens", h)
		}
	}
	return nil
}

func checkMachineID(id string) error {
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return errors.New("machine_id must be 32 lower-case hex digits")
	}
	return nil
}

func checkListen(name, addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("%s %q must be host:port", name, addr)
	}
	return nil
}
