// Package remote is the provider that reaches a host agent over hostwire. Two
// HTTP/2 connections are kept, one for the host's control and one for what
// streams in and out of guests, so a full pipe never delays a destroy.
package remote

import (
	"context"
	"errors"
	"net/http"
	"path"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/tracing"
)

// Config says how to reach one host and for whom. URL, Token and Fencer are
// needed.
type Config struct {
	// URL is unix:///path, http://loopback:port or https://host:port.
	URL   string
	Token string
	// CertSHA256 pins the host's certificate, in hex.
	CertSHA256 string
	// RegistryID and MachineID pin the host, once they are known: another one
	// refuses every call about a VM.
	RegistryID, MachineID string
	// HostID names the host in traces.
	HostID string
	// Release is this program's, which refusals for a host's age name.
	Release string
	// Fencer is asked before every change.
	Fencer provider.Fencer

	DialTimeout   time.Duration // 10 s
	CallTimeout   time.Duration // of a look or a claim; 30 s
	ChangeTimeout time.Duration // of create, destroy, drain and upload; 11 min

	// Guard is asked before anything is written to the host; nil allows all.
	Guard func() error
	// Wrap, if set, wraps the transports: calls end with a term by it, and tests
	// lose answers.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Provider is one host.
type Provider struct {
	meter
	snapshotCalls

	cfg        Config
	transports []*http.Transport
	control    *http.Client // of the host itself
	base       string       // URL of the calls
	host       hostwirev1connect.HostClient
	vms        hostwirev1connect.VMClient
	guests     hostwirev1connect.GuestClient
	images     hostwirev1connect.ImagesClient
	ports      hostwirev1connect.PortsClient // of the host itself
	forwards   hostwirev1connect.PortsClient
	metering   hostwirev1connect.MeteringClient
	snapshots  hostwirev1connect.SnapshotsClient
	streams    *http.Client

	mu      sync.Mutex
	claimed map[string]provider.Claimed // by fleet
	taken   map[string]int64            // the newest term whose claim worked out, by fleet
}

var (
	_ provider.Provider       = (*Provider)(nil)
	_ provider.CapacityProber = (*Provider)(nil)
	_ provider.Claimer        = (*Provider)(nil)
	_ provider.Purger         = (*Provider)(nil)
	_ provider.MetricsReader  = (*Provider)(nil)
)

// New makes a provider. It does no I/O; the host is dialled by the first call.
func New(cfg Config) (*Provider, error) {
	if cfg.Token == "" || cfg.Fencer == nil {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "a host needs a token")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.CallTimeout, 30*time.Second)
	def(&cfg.ChangeTimeout, 11*time.Minute)
	p := &Provider{cfg: cfg, claimed: map[string]provider.Claimed{}, taken: map[string]int64{}}
	control, base, err := p.client()
	if err != nil {
		return nil, err
	}
	streams, _, err := p.client()
	if err != nil {
		return nil, err
	}
	opts := connect.WithClientOptions(connect.WithReadMaxBytes(hostwire.MaxListBytes), connect.WithAcceptCompression("gzip", nil, nil))
	p.control, p.base = control, base
	p.host = hostwirev1connect.NewHostClient(control, base, opts)
	p.vms = hostwirev1connect.NewVMClient(control, base, opts)
	p.guests = hostwirev1connect.NewGuestClient(streams, base, opts)
	p.images = hostwirev1connect.NewImagesClient(control, base, opts)
	p.meter = meter{p}
	p.metering = hostwirev1connect.NewMeteringClient(control, base, opts)
	p.ports = hostwirev1connect.NewPortsClient(control, base, opts)
	p.forwards = hostwirev1connect.NewPortsClient(streams, base, opts)
	p.snapshotCalls = snapshotCalls{p}
	p.snapshots = hostwirev1connect.NewSnapshotsClient(control, base, opts)
	p.streams = streams
	return p, nil
}

func (p *Provider) client() (*http.Client, string, error) {
	t, base, err := hostwire.NewTransport(hostwire.ClientConfig{
		URL: p.cfg.URL, CertSHA256: p.cfg.CertSHA256, DialTimeout: p.cfg.DialTimeout,
	})
	if err != nil {
		return nil, "", err
	}
	if p.cfg.Guard != nil {
		t.DialContext = guarded(t.DialContext, p.cfg.Guard)
	}
	p.transports = append(p.transports, t)
	var rt http.RoundTripper = t
	if p.cfg.Wrap != nil {
		rt = p.cfg.Wrap(rt)
	}
	return &http.Client{
		Transport: headers{
			next: rt, authorization: "Bearer " + p.cfg.Token, identity: hostwire.Identity(p.cfg.RegistryID, p.cfg.MachineID),
			hostID: p.cfg.HostID, own: hostwire.Own(p.cfg.Release),
		},
		// A redirect would carry the token somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, base, nil
}

// headers adds the token, the wire version and the host that is meant to every
// call.
type headers struct {
	next          http.RoundTripper
	authorization string
	identity      string // empty: not known yet
	hostID        string // for traces
	own           hostwire.Peer
}

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", h.authorization)
	h.own.Stamp(r.Header)
	if h.identity != "" {
		r.Header.Set(hostwire.IdentityHeader, h.identity)
	}
	r, span := tracing.Call(r, "host "+path.Base(r.URL.Path))
	span.Set(tracing.HostID, h.hostID)
	resp, err := h.next.RoundTrip(r)
	if err != nil {
		span.End(err)
		return nil, err
	}
	resp.Body = tracing.UntilClosed(resp.Body, span)
	if v := resp.Header.Get(hostwire.VersionHeader); v != "" {
		other := hostwire.PeerOf(resp.Header)
		_, err := hostwire.Meet(h.own, other)
		if err == nil && resp.StatusCode == http.StatusNotFound && resp.Header.Get("Content-Type") != "application/json" {
			err = hostwire.Unsupported(path.Base(r.URL.Path), h.own, other)
		}
		if err != nil {
			return nil, errors.Join(err, resp.Body.Close())
		}
	}
	return resp, nil
}

// Close releases the connections.
func (p *Provider) Close() error {
	for _, t := range p.transports {
		t.CloseIdleConnections()
	}
	return nil
}

func wireFence(f provider.Fence) *hostwirev1.Fence {
	return &hostwirev1.Fence{
		FleetId: f.FleetID, Term: f.Term, ClaimToken: f.ClaimToken, StoreFingerprint: f.Fingerprint,
		Revision: f.Revision, Volatile: f.Volatile,
	}
}

func wireRef(r provider.Ref) *hostwirev1.Ref {
	return &hostwirev1.Ref{VmId: r.ID, Uid: r.UID, Generation: r.Generation, OperationId: r.OpID}
}

// callError turns what a call returned into the host's own refusal, or marks
// that its answer never came, or was that the host does not know. The caller's
// own end stays what it is.
func callError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	e, answered := hostwire.FromConnect(err)
	switch {
	case answered && connect.CodeOf(err) == connect.CodeUnauthenticated:
		refused := fleet.Wrap(e.Code, errors.Join(provider.ErrUnauthorized, err), e.Message)
		refused.Details = e.Details
		return refused
	case answered && !errors.Is(e, hostwire.ErrUnsure), errors.Is(err, hostwire.ErrUnsupported):
		return e
	}
	cause := err
	if ctx.Err() != nil {
		cause = errors.Join(context.Cause(ctx), err)
	}
	lost := fleet.Wrap(e.Code, errors.Join(provider.ErrNoAnswer, cause), e.Message)
	lost.Details = e.Details
	return lost
}

// Create makes and boots a VM; see provider.Provider.
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	var result *hostwirev1.CreateVMResult
	err := p.change(ctx, func(f *hostwirev1.Fence) (err error) {
		result, err = p.create(ctx, f, req)
		return err
	})
	if err != nil {
		return provider.Created{}, err
	}
	return created(p, req, result), nil
}

func created(p *Provider, req provider.CreateRequest, result *hostwirev1.CreateVMResult) provider.Created {
	digest, boot := hostwire.BootFromWire(result)
	return provider.Created{
		Environment: p.Open(req.Ref), ImageDigest: digest, Boot: boot, Certificate: hostwire.CertificateFromWire(result.GetCertificateJson()),
	}
}

func createToWire(f *hostwirev1.Fence, req provider.CreateRequest) *hostwirev1.CreateVMRequest {
	return &hostwirev1.CreateVMRequest{
		Fence: f, Ref: wireRef(req.Ref),
		Spec: &hostwirev1.Spec{
			Cpus: int64(req.Spec.CPUs), RamMb: int64(req.Spec.RamMB), StorageGb: int64(req.Spec.StorageGB), Image: req.Spec.Image, HugePages: req.Spec.HugePages,
			ServiceImages: req.Spec.ServiceImages, Limits: hostwire.LimitsToWire(req.Spec.Limits),
		},
		Credentials: &hostwirev1.Credentials{
			Hostname: req.Credentials.Hostname, MachineId: req.Credentials.MachineID, Token: req.Credentials.Token,
			CertPem: req.Credentials.CertPEM, KeyPem: req.Credentials.KeyPEM,
		},
		Golden: string(req.Golden),
	}
}

func (p *Provider) create(ctx context.Context, f *hostwirev1.Fence, req provider.CreateRequest) (*hostwirev1.CreateVMResult, error) {
	stream, err := p.vms.CreateVM(ctx, connect.NewRequest(createToWire(f, req)))
	if err != nil {
		return nil, callError(ctx, err)
	}
	defer func() { _ = stream.Close() }() // answered or given up by then
	for stream.Receive() {
		switch m := stream.Msg(); {
		case m.GetResult() != nil:
			return m.GetResult(), nil
		case m.GetStep() != "" && req.Progress != nil:
			req.Progress(m.GetStep())
		}
	}
	err = stream.Err()
	if err == nil {
		err = errors.New("the stream ended without a result")
	}
	return nil, callError(ctx, err)
}

// Get asks the host for one VM of ours.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (fleet.ObservedVM, error) {
	f, err := p.cfg.Fencer.Fence()
	if err != nil {
		return fleet.ObservedVM{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	resp, err := p.vms.GetVM(ctx, connect.NewRequest(&hostwirev1.GetVMRequest{FleetId: f.FleetID, VmId: ref.ID, Uid: ref.UID}))
	if err != nil {
		return fleet.ObservedVM{}, callError(ctx, err)
	}
	return hostwire.VMFromWire(resp.Msg.GetVm()), nil
}

// Destroy ends a VM and returns once the host has cleared everything.
func (p *Provider) Destroy(ctx context.Context, ref provider.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	return p.change(ctx, func(f *hostwirev1.Fence) error {
		_, err := p.vms.DestroyVM(ctx, connect.NewRequest(&hostwirev1.DestroyVMRequest{Fence: f, Ref: wireRef(ref)}))
		return callError(ctx, err)
	})
}

// List looks at the host.
func (p *Provider) List(ctx context.Context) (provider.Listing, error) {
	return p.ListVerdicts(ctx, nil)
}

// ListVerdicts looks at the host and at what the healthchecks of some lives say.
func (p *Provider) ListVerdicts(ctx context.Context, probed []string) (provider.Listing, error) {
	f, err := p.cfg.Fencer.Fence()
	if err != nil {
		return provider.Listing{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	resp, err := p.vms.ListVMs(ctx, connect.NewRequest(&hostwirev1.ListVMsRequest{FleetId: f.FleetID, Probed: probed}))
	if err != nil {
		return provider.Listing{}, callError(ctx, err)
	}
	m := resp.Msg
	p.compare(f.FleetID, m.GetMarkTerm())
	l := provider.Listing{
		Facts: hostwire.FactsFromWire(m.GetFacts()), Complete: m.GetComplete(), Reason: m.GetReason(),
		VMs: make([]fleet.ObservedVM, len(m.GetVms())), Foreign: int(m.GetForeign()),
		ForeignFleets: hostwire.CountsFromWire(m.GetForeignFleets()), Capacity: hostwire.CapacityFromWire(m.GetCapacity()),
	}
	for i, v := range m.GetVms() {
		l.VMs[i] = hostwire.VMFromWire(v)
		if l.VMs[i].Exit != nil {
			l.Exits = append(l.Exits, *l.VMs[i].Exit)
		}
	}
	return l, nil
}

// Capacity reports what the host is and takes.
func (p *Provider) Capacity(ctx context.Context) (fleet.HostCapacity, fleet.HostFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	resp, err := p.host.GetInfo(ctx, connect.NewRequest(&hostwirev1.GetInfoRequest{}))
	if err != nil {
		return fleet.HostCapacity{}, fleet.HostFacts{}, callError(ctx, err)
	}
	return hostwire.CapacityFromWire(resp.Msg.GetCapacity()), hostwire.FactsFromWire(resp.Msg.GetFacts()), nil
}
