package fleet

import (
	"strings"
	"time"
)

// Architectures in GOARCH vocabulary. An empty architecture means amd64 on a
// host and "any" on a spec (seed: NormalizeArch).
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
)

// NormalizeArch maps uname -m spellings onto GOARCH vocabulary. Empty stays
// empty; an unknown value comes back lower-cased so that validation can name it.
func NormalizeArch(arch string) string {
	switch a := strings.ToLower(strings.TrimSpace(arch)); a {
	case "x86_64", "x86-64", "amd64":
		return ArchAMD64
	case "aarch64", "arm64":
		return ArchARM64
	default:
		return a
	}
}

// Spec describes the machine a caller wants. Zero sizes mean the server's
// defaults. It is stored with the VM in full, so that a recovered VM keeps
// every policy it was created with.
type Spec struct {
	Name      string `json:"name,omitempty"`
	CPUs      int    `json:"cpus"`
	RamMB     int    `json:"ram_mb"`
	StorageGB int    `json:"storage_gb"` // size of the root disk
	Region    string `json:"region,omitempty"`
	Arch      string `json:"arch,omitempty"`

	GPUs             int32    `json:"gpus,omitempty"`
	GPUKind          string   `json:"gpu_kind,omitempty"`
	GPUProfile       string   `json:"gpu_profile,omitempty"`
	GPUUUIDs         []string `json:"gpu_uuids,omitempty"`
	MIGInstanceUUIDs []string `json:"mig_instance_uuids,omitempty"`

	// HostID pins to one host. A pin is one more gate, never an override.
	HostID string `json:"host_id,omitempty"`
	// Labels must all be present, with equal values, on the chosen host.
	Labels map[string]string `json:"labels,omitempty"`

	// Tags are the caller's own, for finding environments; placement does not
	// look at them.
	Tags map[string]string `json:"tags,omitempty"`
	// MaxRuntime is a ceiling on the age of the VM counted from its creation;
	// zero means the fleet's default (2 h).
	MaxRuntime time.Duration `json:"max_runtime,omitempty"`
	// IdleTimeout ends the VM after this long without exec or attach; zero
	// means the fleet's default (off).
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	// OnIdle is what happens then; empty is IdleDestroy.
	OnIdle string `json:"on_idle,omitempty"`
	// Golden is GoldenOff for a machine that has to boot.
	Golden string `json:"golden,omitempty"`

	Image string `json:"image,omitempty"`
	// ServiceImages are the images that services of the manifest name, with the
	// digests that they stood for at the create.
	ServiceImages []string `json:"service_images,omitempty"`
	// Limits bound what the machine takes beside memory and disk size.
	Limits ResourceLimits `json:"limits,omitzero"`

	SeedSnapshotID string     `json:"seed_snapshot_id,omitempty"`
	ResumeSeed     bool       `json:"resume_seed,omitempty"`
	HugePages      bool       `json:"huge_pages,omitempty"`
	PinnedHostID   string     `json:"pinned_host_id,omitempty"`
	Egress         EgressSpec `json:"egress,omitzero"`
	Hitl           *HitlSpec  `json:"hitl,omitempty"`
	// Ancestors is the fork lineage, oldest first.
	Ancestors []string `json:"ancestors,omitempty"`
}

// EgressMode is how traffic leaves the guest.
type EgressMode string

// Egress modes. The empty mode reads as direct.
const (
	EgressDirect EgressMode = "direct"
	EgressProxy  EgressMode = "proxy"
)

// EgressSpec is the outbound policy; its zero value is direct.
type EgressSpec struct {
	Mode     EgressMode `json:"mode,omitempty"`
	Provider string     `json:"provider,omitempty"`
	Protocol string     `json:"protocol,omitempty"`
}

// Direct reports whether traffic leaves by the host's own NAT.
func (e EgressSpec) Direct() bool { return e.Mode == "" || e.Mode == EgressDirect }

// HitlSpec is the human-in-the-loop policy as the caller sent it; the gates
// that read it interpret the document.
type HitlSpec struct {
	Policy map[string]any `json:"policy,omitempty"`
}

// Startup script bounds (seed: DefaultStartupScriptTimeout and
// DefaultMaxStartupScriptTimeout). A request above the ceiling is refused,
// never clamped.
const (
	DefaultStartupScriptTimeout    = 30 * time.Second
	DefaultMaxStartupScriptTimeout = 55 * time.Second
)

// Exec bounds of the buffered exec call (seed: DefaultExecTimeout,
// MaxExecTimeout). Larger requests are clamped.
const (
	DefaultExecTimeout = 60 * time.Second
	MaxExecTimeout     = 600 * time.Second
)

// Guest paths of the fused profile (seed). /fuse is a tmpfs inside the guest,
// so secrets never reach its disk.
const (
	ReservedGuestDir       = "/fuse"
	GuestManifestPath      = ReservedGuestDir + "/manifest.json"
	FuseSecretsPath        = ReservedGuestDir + "/secrets.json"
	GuestTLSCertPath       = ReservedGuestDir + "/tls/cert.pem"
	GuestTLSKeyPath        = ReservedGuestDir + "/tls/key.pem"
	GuestAuthTokenPath     = ReservedGuestDir + "/auth-token"
	GuestHealthcheckPath   = ReservedGuestDir + "/healthcheck.json"
	GuestHealthStatePath   = ReservedGuestDir + "/health.json"
	GuestDesktopPath       = ReservedGuestDir + "/desktop.json"
	TunnelConfigGuestPath  = ReservedGuestDir + "/tunnel.json"
	GuestEgressDir         = "/etc/fuse"
	GuestEgressJSONPath    = GuestEgressDir + "/egress.json"
	GuestEgressEnvPath     = GuestEgressDir + "/egress.env"
	GuestEgressProfilePath = "/etc/profile.d/fuse-egress.sh"
)

// DefaultFusedManifest is used when a create request carries no manifest.
const DefaultFusedManifest = `{"version":"1","machine":{"workspace":"/workspace"},"services":{}}`

// DefaultFusedDrainCommand is the drain command of the fused profile: none.
// A drain stops the manifest's services over guestwire and keeps fused up, so
// there is nothing to kill (stronger than the seed's "systemctl stop fused").
const DefaultFusedDrainCommand = ""

// BootOptions are the parts of a create request that shape the boot and are
// not resources. They are sealed before they are stored.
type BootOptions struct {
	StartupScript        string            `json:"startup_script,omitempty"`
	StartupScriptTimeout time.Duration     `json:"startup_script_timeout,omitempty"`
	GatewayURL           string            `json:"gateway_url,omitempty"`
	GatewayToken         string            `json:"gateway_token,omitempty"`
	Manifest             []byte            `json:"manifest,omitempty"`
	Secrets              map[string]string `json:"secrets,omitempty"`
	Files                map[string][]byte `json:"files,omitempty"`
	Expose               []ExposeSpec      `json:"expose,omitempty"`
	Healthcheck          *HealthcheckSpec  `json:"healthcheck,omitempty"`
	Desktop              *DesktopSpec      `json:"desktop,omitempty"`
	TunnelConfig         []byte            `json:"tunnel_config,omitempty"`
}

// Protocol is the transport of a published port. Empty reads as tcp; an
// unknown value is carried through, since a newer host may know it.
type Protocol string

// Known transports.
const (
	ProtocolTCP Protocol = "tcp"
	ProtocolUDP Protocol = "udp"
)

// ExposeSpec asks for a guest port to be published. HostPort is the number at
// the host; zero lets the host choose.
type ExposeSpec struct {
	Port     int      `json:"port"`
	As       string   `json:"as,omitempty"`
	Protocol Protocol `json:"protocol,omitempty"`
	HostPort int      `json:"host_port,omitempty"`
}

// Endpoint is a published port as it really is: Port of the guest is reached at
// URL, an address and port of the host (seed).
type Endpoint struct {
	As       string   `json:"as,omitempty"`
	URL      string   `json:"url"`
	Port     int      `json:"port"`
	Protocol Protocol `json:"protocol,omitempty"`
}

// DesktopSpec is the size of the graphical session in pixels.
type DesktopSpec struct {
	Width  int    `json:"width"`
	Height int    `json:"height"`
	WM     string `json:"wm,omitempty"`
}

// HealthcheckHTTP is a GET inside the guest.
type HealthcheckHTTP struct {
	Port int    `json:"port"`
	Path string `json:"path,omitempty"`
}

// HealthcheckSpec is the readiness probe as it travels to the guest; exactly
// one of HTTP and Exec is set. Unset numbers stay unset: the guest owns the
// defaults (seed).
type HealthcheckSpec struct {
	HTTP               *HealthcheckHTTP `json:"http,omitempty"`
	Exec               []string         `json:"exec,omitempty"`
	IntervalSeconds    int64            `json:"interval_seconds,omitempty"`
	TimeoutSeconds     int64            `json:"timeout_seconds,omitempty"`
	Retries            int              `json:"retries,omitempty"`
	StartPeriodSeconds int64            `json:"start_period_seconds,omitempty"`
}

// HealthState is the probe's verdict. It is deliberately no VMState: a failing
// probe reports and moves nothing.
type HealthState string

// Probe verdicts.
const (
	HealthStarting HealthState = "starting"
	HealthPassing  HealthState = "passing"
	HealthFailing  HealthState = "failing"
)

// HealthStatus is one verdict as the guest wrote it. It is never persisted.
type HealthStatus struct {
	State    HealthState `json:"state"`
	Since    time.Time   `json:"since,omitzero"`
	Failures int         `json:"failures,omitempty"`
	Message  string      `json:"message,omitempty"`
}
