package hosts

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of a registration.
const (
	maxURL   = 2048
	maxToken = 4096
	// ramPerVM is the share of memory that one VM slot stands for when nobody
	// says how many VMs a host takes.
	ramPerVM   = 256
	maxVMCount = 1000
	// maxSize is above every machine there is and far below an overflow.
	maxSize = 1 << 30
)

var certFingerprint = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (r *RegisterRequest) validate() error {
	if !fleet.ValidHostID(r.ID) {
		return fleet.Invalid("id", "1 to 63 letters, digits, dots, underscores or dashes, starting with a letter or digit", "choose another id", "%.80q is not allowed", r.ID)
	}
	if err := r.checkURL(); err != nil {
		return err
	}
	if len(r.Token) > maxToken || strings.ContainsAny(r.Token, "\x00\r\n") {
		return fleet.Invalid("token", fmt.Sprintf("%d bytes on one line", maxToken), "give the token that fuse hostd was started with", "has %d bytes or a line break", len(r.Token))
	}
	if err := r.checkCert(); err != nil {
		return err
	}
	if r.Region != "" && !fleet.ValidLabel(r.Region) {
		return fleet.Invalid("region", "1 to 63 letters, digits, dots, underscores or dashes", "choose another name", "%.80q is not allowed", r.Region)
	}
	if err := r.checkLabels(); err != nil {
		return err
	}
	return r.checkCapacity()
}

func (r *RegisterRequest) checkCert() error {
	r.CertSHA256 = strings.ToLower(strings.ReplaceAll(r.CertSHA256, ":", ""))
	if r.CertSHA256 != "" && !certFingerprint.MatchString(r.CertSHA256) {
		return fleet.Invalid("cert_sha256", "64 hexadecimal digits", "copy the fingerprint that fuse hostd prints", "is no SHA-256 fingerprint")
	}
	return nil
}

func (r *RegisterRequest) checkURL() error {
	const limit = "https://HOST:PORT[/PATH], http:// on a loopback address, or unix:///PATH"
	bad := func(why string) error {
		return fleet.Invalid("url", limit, "give the address that fuse hostd listens on", "%s", why)
	}
	if len(r.URL) > maxURL {
		return bad(fmt.Sprintf("has %d bytes", len(r.URL)))
	}
	u, err := url.Parse(r.URL)
	switch {
	case err != nil:
		return bad("cannot be parsed")
	case u.User != nil:
		return bad("contains credentials; the token has a field of its own")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(r.URL, "#"):
		return bad("has a query or a fragment")
	case u.Opaque != "":
		return bad("has no // after its scheme")
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !strings.HasPrefix(r.URL, "unix://") || !path.IsAbs(u.Path) || path.Clean(u.Path) != u.Path || u.Path == "/" {
			return bad("is no absolute, clean path of a socket")
		}
	case "http", "https":
		if why := checkAuthority(u); why != "" {
			return bad(why)
		}
	default:
		return bad(fmt.Sprintf("has the scheme %.20q", u.Scheme))
	}
	r.URL = strings.TrimRight(r.URL, "/")
	return nil
}

func checkAuthority(u *url.URL) string {
	if u.Hostname() == "" {
		return "names no host"
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Sprintf("has the port %.10q", port)
		}
	} else if strings.HasSuffix(u.Host, ":") {
		return "has an empty port"
	}
	// The token travels in every call: in clear only where nobody listens.
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "is plain HTTP to another machine, which would show the token on the network"
	}
	return ""
}

func (r *RegisterRequest) checkLabels() error {
	return fleet.LabelRule{Field: "labels", Noun: "labels", Most: fleet.MaxLabels, Fewer: "register fewer labels", Remedy: "rename the label"}.Check(r.Labels)
}

func (r *RegisterRequest) checkCapacity() error {
	for _, f := range capacityFields {
		if n := *f.of(&r.Capacity); n < 0 || n > maxSize {
			return fleet.Invalid(f.name, fmt.Sprintf("0 to %d", maxSize), "leave it out to take what the agent says", "is %d", n)
		}
	}
	r.Capacity.Arch = fleet.NormalizeArch(r.Capacity.Arch)
	switch r.Capacity.Arch {
	case "", fleet.ArchAMD64, fleet.ArchARM64:
	default:
		return fleet.Invalid("capacity.arch", "amd64 or arm64", "leave it out to take what the agent says", "%.40q is not known", r.Capacity.Arch)
	}
	switch r.Backend {
	case "", fleet.BackendQEMU, fleet.BackendFirecracker, fleet.BackendSim:
	default:
		return fleet.Invalid("backend", "qemu, firecracker or sim", "leave it out to take what the agent says", "%.40q is not known", string(r.Backend))
	}
	gpu := r.Capacity.GPUs != 0 || r.Capacity.GPUKind != "" || len(r.Capacity.MIGProfiles) > 0
	if gpu && r.Backend != fleet.BackendQEMU {
		return fleet.Invalid("capacity.gpus", "hosts of backend qemu", "set backend to qemu, or leave GPUs out", "need backend qemu, not %q", string(r.Backend))
	}
	return nil
}

// capacityFields are the sizes that every host must end up with.
var capacityFields = []struct {
	name string
	of   func(*fleet.HostCapacity) *int
}{
	{"capacity.cpus", func(c *fleet.HostCapacity) *int { return &c.CPUs }},
	{"capacity.ram_mb", func(c *fleet.HostCapacity) *int { return &c.RamMB }},
	{"capacity.storage_gb", func(c *fleet.HostCapacity) *int { return &c.StorageGB }},
	{"capacity.vm_count", func(c *fleet.HostCapacity) *int { return &c.VMCount }},
}

// merge is the capacity that a host is registered with. What was declared
// wins; what differs from the agent's word is named in a warning.
func merge(req RegisterRequest, probe probed) (fleet.HostCapacity, []string, error) {
	c, seen := req.Capacity, probe.capacity
	var warnings, missing []string
	for _, f := range capacityFields {
		declared, found := f.of(&c), *f.of(&seen)
		switch {
		case *declared == 0:
			*declared = found
		case probe.err == nil && found > 0 && found != *declared:
			warnings = append(warnings, fmt.Sprintf("%s: declared %d, the agent reports %d; the declared value counts", f.name, *declared, found))
		}
	}
	if c.VMCount == 0 && c.RamMB > 0 {
		c.VMCount = min(max(c.RamMB/ramPerVM, 1), maxVMCount)
	}
	for _, f := range capacityFields {
		if *f.of(&c) <= 0 {
			missing = append(missing, f.name)
		}
	}
	switch {
	case len(missing) > 0 && probe.err != nil:
		why, ok := callerMessage(probe.err)
		if !ok { // what a dialer says is for the log
			why = "its agent did not answer"
		}
		remedy := "check that fuse hostd runs, the URL (https beyond loopback) and the certificate's fingerprint as hostd prints them, or declare the full capacity"
		if own := new(fleet.Error); errors.As(probe.err, &own) {
			remedy = cmp.Or(own.Details[fleet.DetailRemedy], remedy)
		}
		return c, nil, &ProbeError{fleet.Wrap(fleet.CodeUnavailable, probe.err,
			fmt.Sprintf("host %s cannot be asked for what was not declared, %s: %s", req.ID, strings.Join(missing, ", "), why)).
			With(fleet.DetailHostID, req.ID).With(fleet.DetailRemedy, remedy)}
	case len(missing) > 0:
		return c, nil, fleet.Invalid(missing[0], "above 0", "declare it", "is neither declared nor reported by the agent")
	case probe.err != nil:
		warnings = append(warnings, fmt.Sprintf("the agent did not answer (%s); the declared capacity is unverified", reasonOf(probe.err)))
	}
	c.HugePages = seen.HugePages // the machine's own to know
	switch {
	case c.Arch == "":
		c.Arch = seen.Arch
	case seen.Arch != "" && seen.Arch != c.Arch:
		return c, nil, fleet.Invalid("capacity.arch", seen.Arch, "leave it out to take what the agent says", "is %s, but the agent runs on %s", c.Arch, seen.Arch)
	}
	return c, warnings, nil
}

// pickBackend takes the declared backend if the agent does not contradict it.
func pickBackend(declared fleet.HostBackend, probe probed) (fleet.HostBackend, error) {
	driver := fleet.HostBackend(probe.facts.Driver)
	if declared == "" {
		return driver, nil
	}
	if driver != "" && driver != declared {
		return "", fleet.Invalid("backend", string(driver), "leave it out to take what the agent says", "is %s, but the agent drives %s", declared, driver)
	}
	return declared, nil
}
