package hostd

import (
	"context"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/tracing"
)

// The services translate between hostwire and Host; they decide nothing.

type hostService struct{ h *Host }

func (s hostService) GetInfo(ctx context.Context, _ *connect.Request[hostwirev1.GetInfoRequest]) (*connect.Response[hostwirev1.GetInfoResponse], error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	info, err := s.h.Info(ctx)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.GetInfoResponse{
		Facts: hostwire.FactsToWire(info.Facts), Capacity: hostwire.CapacityToWire(info.Capacity), Images: info.Images,
	}), nil
}

func (s hostService) Claim(_ context.Context, req *connect.Request[hostwirev1.ClaimRequest]) (*connect.Response[hostwirev1.ClaimResponse], error) {
	m := req.Msg
	claim := Claim{Fence: fenceOf(m.GetFence()), AcceptTerm: m.GetAcceptTerm()}
	claim.Proof = fence.Proof{Term: m.GetProof().GetTerm(), Token: m.GetProof().GetToken(), Revision: m.GetProof().GetRevision()}
	if err := s.h.Claim(claim); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.ClaimResponse{}), nil
}

func (s hostService) PurgeFleet(ctx context.Context, req *connect.Request[hostwirev1.PurgeFleetRequest]) (*connect.Response[hostwirev1.PurgeFleetResponse], error) {
	m := req.Msg
	destroyed, failed, err := s.h.PurgeFleet(ctx, fenceOf(m.GetFence()), m.GetFleetId(), m.GetForce())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.PurgeFleetResponse{Destroyed: int64(destroyed), Failed: int64(failed)}), nil
}

type vmService struct{ h *Host }

func (s vmService) CreateVM(ctx context.Context, req *connect.Request[hostwirev1.CreateVMRequest], out *connect.ServerStream[hostwirev1.CreateVMResponse]) error {
	res, err := s.create(ctx, req.Msg, raise.Source{Golden: req.Msg.GetGolden() != "off"}, func(step string) error {
		return out.Send(&hostwirev1.CreateVMResponse{Kind: &hostwirev1.CreateVMResponse_Step{Step: step}})
	})
	if err != nil {
		return err
	}
	return out.Send(&hostwirev1.CreateVMResponse{Kind: &hostwirev1.CreateVMResponse_Result{Result: res}})
}

// create is a create that begins with src.
func (s vmService) create(ctx context.Context, m *hostwirev1.CreateVMRequest, src raise.Source, step func(string) error) (*hostwirev1.CreateVMResult, error) {
	spec, cred := m.GetSpec(), m.GetCredentials()
	span := tracing.Current(ctx)
	span.Set(tracing.VMID, m.GetRef().GetVmId())
	create := CreateRequest{
		Ref:  refOf(m.GetRef()),
		CPUs: int(spec.GetCpus()), RamMB: int(spec.GetRamMb()), StorageGB: int(spec.GetStorageGb()), Image: spec.GetImage(), HugePages: spec.GetHugePages(), Services: spec.GetServiceImages(), Limits: hostwire.LimitsFromWire(spec.GetLimits()),
		Identity: driver.Identity{
			Hostname: cred.GetHostname(), MachineID: cred.GetMachineId(), Token: cred.GetToken(),
			CertPEM: cred.GetCertPem(), KeyPEM: cred.GetKeyPem(),
		},
		From: src,
	}
	res, err := s.h.Create(ctx, fenceOf(m.GetFence()), create, step)
	if err != nil {
		return nil, err
	}
	span.Steps(ctx, "hostd create ", res.Boot.Steps)
	out := hostwire.BootToWire(res.ImageDigest, res.Boot)
	out.CertificateJson = hostwire.CertificateToWire(res.Certificate)
	return out, nil
}

func (s vmService) GetVM(_ context.Context, req *connect.Request[hostwirev1.GetVMRequest]) (*connect.Response[hostwirev1.GetVMResponse], error) {
	vm, err := s.h.Get(req.Msg.GetFleetId(), req.Msg.GetVmId(), req.Msg.GetUid())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.GetVMResponse{Vm: hostwire.VMToWire(vm)}), nil
}

func (s vmService) DestroyVM(ctx context.Context, req *connect.Request[hostwirev1.DestroyVMRequest]) (*connect.Response[hostwirev1.DestroyVMResponse], error) {
	tracing.Current(ctx).Set(tracing.VMID, req.Msg.GetRef().GetVmId())
	if err := s.h.Destroy(ctx, fenceOf(req.Msg.GetFence()), refOf(req.Msg.GetRef())); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.DestroyVMResponse{}), nil
}

func (s vmService) ListVMs(ctx context.Context, req *connect.Request[hostwirev1.ListVMsRequest]) (*connect.Response[hostwirev1.ListVMsResponse], error) {
	if req.Msg.GetFleetId() == "" {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the listing names no fleet")
	}
	l := s.h.ListVerdicts(ctx, req.Msg.GetFleetId(), req.Msg.GetProbed())
	vms := make([]*hostwirev1.ObservedVM, len(l.VMs))
	for i, v := range l.VMs {
		vms[i] = hostwire.VMToWire(v)
	}
	// The list is made; a test may hold it up here while the world goes on.
	if err := failpoint.Hit("hostd.list.answer"); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.ListVMsResponse{
		Facts: hostwire.FactsToWire(l.Facts), Complete: l.Complete, Reason: l.Reason, Vms: vms, Foreign: int64(l.Foreign),
		ForeignFleets: hostwire.CountsToWire(l.ForeignFleets), MarkTerm: l.MarkTerm,
		Capacity: hostwire.CapacityToWire(l.Capacity),
	}), nil
}

func (s vmService) DrainVM(ctx context.Context, req *connect.Request[hostwirev1.DrainVMRequest]) (*connect.Response[hostwirev1.DrainVMResponse], error) {
	m := req.Msg
	tracing.Current(ctx).Set(tracing.VMID, m.GetRef().GetVmId())
	status, err := s.h.Drain(ctx, fenceOf(m.GetFence()), refOf(m.GetRef()), m.GetCommand())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.DrainVMResponse{Status: hostwire.StatusToWire(status)}), nil
}

func fenceOf(f *hostwirev1.Fence) Fence {
	return Fence{
		FleetID: f.GetFleetId(), Term: f.GetTerm(),
		ClaimToken: f.GetClaimToken(), Fingerprint: f.GetStoreFingerprint(),
		Revision: f.GetRevision(), Volatile: f.GetVolatile(),
	}
}

func refOf(r *hostwirev1.Ref) Ref {
	return Ref{VMID: r.GetVmId(), UID: r.GetUid(), Generation: r.GetGeneration(), OpID: r.GetOperationId()}
}
