package api

import (
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
)

// endedEnvironment is what is left of an environment after its end.
func endedEnvironment(l *fleet.Life) gen.Environment {
	return gen.Environment{
		ID: l.VMID, UID: l.UID, State: string(l.State), TaskID: l.TaskID, Owner: l.Owner, HostID: l.HostID,
		Spec: specOf(&l.Spec), Error: l.Error, Reason: new(reasonOf(l.Reason)), CreatedAt: l.CreatedAt.UTC(), UpdatedAt: l.EndedAt.UTC(),
	}
}

func reasonOf(r fleet.Reason) gen.Reason {
	return gen.Reason{Actor: r.Actor, Rule: r.Rule, Evidence: r.Evidence}
}

func specOf(s *fleet.Spec) gen.Spec {
	return gen.Spec{
		CPUs: int32(s.CPUs), RAMMB: int32(s.RamMB), StorageGB: int32(s.StorageGB), Region: s.Region, Arch: s.Arch,
		MaxRuntimeSeconds: int64(s.MaxRuntime / time.Second), IdleTimeoutSeconds: int64(s.IdleTimeout / time.Second),
		Image: s.Image, GPUs: s.GPUs, GPUKind: s.GPUKind, GPUProfile: s.GPUProfile, HostID: s.HostID, Labels: s.Labels, Tags: s.Tags, HugePages: s.HugePages, OnIdle: s.OnIdle,
		ServiceImages: s.ServiceImages, Limits: fromLimits(s.Limits),
	}
}

// seconds reads a number of seconds that a duration can hold.
func seconds(field string, n int64) (time.Duration, error) {
	const most = int64(1<<63-1) / int64(time.Second)
	if n > most || n < -most {
		return 0, fleet.Errorf(fleet.CodeInvalidArgument, "%s is %d", field, n).
			With(fleet.DetailScope, field).With(fleet.DetailLimit, "9223372036 seconds")
	}
	return time.Duration(n) * time.Second, nil
}

func toSpec(s gen.Spec) (spec fleet.Spec, err error) {
	spec = fleet.Spec{
		CPUs: int(s.CPUs), RamMB: int(s.RAMMB), StorageGB: int(s.StorageGB), Region: s.Region, Arch: s.Arch, Image: s.Image,
		GPUs: s.GPUs, GPUKind: s.GPUKind, GPUProfile: s.GPUProfile, HostID: s.HostID, Labels: s.Labels, Tags: s.Tags, HugePages: s.HugePages, OnIdle: s.OnIdle,
	}
	if s.Limits != nil {
		spec.Limits = toLimits(*s.Limits)
	}
	if spec.MaxRuntime, err = seconds("spec.max_runtime_seconds", s.MaxRuntimeSeconds); err != nil {
		return spec, err
	}
	spec.IdleTimeout, err = seconds("spec.idle_timeout_seconds", s.IdleTimeoutSeconds)
	return spec, err
}

// toCreate splits a create into the machine and its boot.
func toCreate(c *gen.CreateEnvironment) (spec fleet.Spec, boot fleet.BootOptions, err error) {
	if spec, err = toSpec(c.Spec); err != nil {
		return spec, boot, err
	}
	spec.SeedSnapshotID, spec.Golden = c.SeedSnapshotID, c.Golden
	if c.Egress != nil {
		spec.Egress = fleet.EgressSpec{Mode: fleet.EgressMode(c.Egress.Mode), Provider: c.Egress.Provider, Protocol: c.Egress.Protocol}
	}
	if c.Hitl != nil {
		spec.Hitl = &fleet.HitlSpec{Policy: c.Hitl}
	}
	boot = fleet.BootOptions{
		StartupScript: c.StartupScript, GatewayURL: c.GatewayURL, GatewayToken: c.GatewayToken,
		Manifest: c.ManifestInline, Secrets: c.Secrets, Files: c.Files,
	}
	for _, e := range c.Expose {
		boot.Expose = append(boot.Expose, fleet.ExposeSpec{Port: e.Port, As: e.As, Protocol: fleet.Protocol(e.Protocol), HostPort: e.HostPort})
	}
	if h := c.Healthcheck; h != nil {
		boot.Healthcheck = &fleet.HealthcheckSpec{
			Exec: h.Exec, IntervalSeconds: h.IntervalSeconds, TimeoutSeconds: h.TimeoutSeconds, Retries: h.Retries, StartPeriodSeconds: h.StartPeriodSeconds,
		}
		if h.HTTP != nil {
			boot.Healthcheck.HTTP = &fleet.HealthcheckHTTP{Port: h.HTTP.Port, Path: h.HTTP.Path}
		}
	}
	if d := c.Desktop; d != nil {
		boot.Desktop = &fleet.DesktopSpec{Width: d.Width, Height: d.Height, WM: d.Wm}
	}
	boot.StartupScriptTimeout, err = seconds("startup_script_timeout_seconds", c.StartupScriptTimeoutSeconds)
	return spec, boot, err
}

// hostOf is a host as the wire shows it.
func hostOf(h *fleet.Host, seen hosts.Sighting) gen.HostInfo {
	info := gen.HostInfo{
		ID: h.ID, URL: h.URL, Region: h.Region, Backend: string(h.Backend), Labels: h.Labels, State: string(h.State),
		Capacity: capacityOf(h.Capacity), Allocated: capacityOf(h.Allocated),
		LastSeen: seen.LastSeen.UTC(),
		Driver:   h.Facts.Driver, DriverVersion: h.Facts.DriverVersion, Accelerator: h.Facts.Accelerator, CPUModel: h.Facts.CPUModel, Kernel: h.Facts.Kernel,
		CPUOvercommit: h.Facts.CPUOvercommit, FreeHugePages: h.Facts.FreeHugePages,
		OverheadMb: h.Facts.OverheadMB, MachineID: h.Facts.MachineID, BootID: h.Facts.BootID, RegistryID: h.Facts.RegistryID,
		Version: h.Facts.Version, WireVersion: h.Facts.WireVersion, Capabilities: h.Facts.Capabilities, Missing: h.Facts.Missing,
		CertSha256: h.CertSHA256, CreatedAt: h.CreatedAt.UTC(), UpdatedAt: h.UpdatedAt.UTC(), Warnings: h.Warnings,
	}
	info.Fenced, info.ForeignFleets = seen.Fenced, seen.ForeignFleets
	info.Returning, info.CertificateShown = seen.Returning, seen.Certificate
	if d := h.Drain; d != nil {
		info.Drain = gen.HostDrain{
			StartedAt: d.StartedAt.UTC(), Deadline: d.Deadline.UTC(), GraceSeconds: int64(d.Grace / time.Second), Actor: d.Actor,
			Total: d.Total, Left: h.Allocated.VMCount,
		}
	}
	info.Condition, info.Misses, info.Foreign, info.UnreachableReason = seen.Condition(), seen.Misses, seen.Foreign, seen.Reason
	if seen.Unreachable {
		info.UnreachableSince = seen.MissedSince.UTC()
	}
	if seen.Misses > 0 || !seen.LastSeen.IsZero() {
		info.Reachable = new(!seen.Unreachable)
	}
	return info
}

func capacityOf(c fleet.HostCapacity) gen.Capacity {
	return gen.Capacity{
		CPUs: c.CPUs, RAMMB: c.RamMB, StorageGB: c.StorageGB, VMCount: c.VMCount, HugePages: c.HugePages, Arch: c.Arch,
		GPUs: c.GPUs, GPUKind: c.GPUKind, MIGProfiles: c.MIGProfiles,
	}
}

func toCapacity(c gen.Capacity) fleet.HostCapacity {
	return fleet.HostCapacity{
		CPUs: c.CPUs, RamMB: c.RAMMB, StorageGB: c.StorageGB, VMCount: c.VMCount, Arch: c.Arch,
		GPUs: c.GPUs, GPUKind: c.GPUKind, MIGProfiles: c.MIGProfiles,
	}
}
