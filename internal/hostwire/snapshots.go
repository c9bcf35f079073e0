package hostwire

import (
	"encoding/json"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// MaxSeedFiles bounds the files that go along with a create from a snapshot, in
// bytes.
const MaxSeedFiles = 4 << 20

// ArtifactToWire renders a snapshot as its host keeps it.
func ArtifactToWire(a fleet.Artifact) *hostwirev1.HostSnapshot {
	m := a.Machine
	return &hostwirev1.HostSnapshot{
		SnapshotId: a.ID, VmId: a.VMID, Uid: a.UID, Kind: string(a.Kind), Digest: a.Digest, Files: a.Files, SizeBytes: a.SizeBytes,
		Machine: &hostwirev1.MachineFacts{
			Arch: m.Arch, Driver: m.Driver, DriverVersion: m.DriverVersion, Machine: m.Machine, Accelerator: m.Accelerator, CpuModel: m.CPUModel,
			PageSize: m.PageSize, Kernel: m.Kernel, Fused: m.Fused, GuestWire: int32(m.GuestWire), Cpus: int64(m.CPUs), RamMb: int64(m.RamMB),
		},
		Timings: &hostwirev1.SnapshotTimings{
			FreezeUs: a.Timings.Freeze.Microseconds(), StopUs: a.Timings.Stop.Microseconds(), TookUs: a.Timings.Took.Microseconds(),
		},
		CreatedAtUnixMs: a.CreatedAt.UnixMilli(), Users: a.Users, Bad: a.Bad,
	}
}

// ArtifactFromWire reads a snapshot as its host keeps it.
func ArtifactFromWire(w *hostwirev1.HostSnapshot) fleet.Artifact {
	m, t := w.GetMachine(), w.GetTimings()
	return fleet.Artifact{
		ID: w.GetSnapshotId(), VMID: w.GetVmId(), UID: w.GetUid(), Kind: fleet.SnapshotKind(w.GetKind()), Digest: w.GetDigest(),
		Files: w.GetFiles(), SizeBytes: w.GetSizeBytes(),
		Machine: fleet.MachineFacts{
			Arch: m.GetArch(), Driver: m.GetDriver(), DriverVersion: m.GetDriverVersion(), Machine: m.GetMachine(),
			Accelerator: m.GetAccelerator(), CPUModel: m.GetCpuModel(), PageSize: m.GetPageSize(), Kernel: m.GetKernel(), Fused: m.GetFused(),
			GuestWire: int(m.GetGuestWire()), CPUs: int(m.GetCpus()), RamMB: int(m.GetRamMb()),
		},
		Timings:   fleet.SnapshotTimings{Freeze: micros(t.GetFreezeUs()), Stop: micros(t.GetStopUs()), Took: micros(t.GetTookUs())},
		CreatedAt: time.UnixMilli(w.GetCreatedAtUnixMs()).UTC(), Users: w.GetUsers(), Bad: w.GetBad(),
	}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// CertificateToWire renders a certificate; nil is empty.
func CertificateToWire(c *fleet.Certificate) []byte {
	if c == nil {
		return nil
	}
	doc, err := json.Marshal(c)
	if err != nil {
		panic("hostwire: certificate: " + err.Error()) // plain fields always encode
	}
	return doc
}

// CertificateFromWire reads a certificate; nil for none and for what is none.
func CertificateFromWire(doc []byte) *fleet.Certificate {
	var c fleet.Certificate
	if len(doc) == 0 || json.Unmarshal(doc, &c) != nil {
		return nil
	}
	return &c
}

// ResumedToWire renders how a machine went on.
func ResumedToWire(boot fleet.BootRecord, c *fleet.Certificate) *hostwirev1.ResumedVM {
	r := BootToWire("", boot)
	return &hostwirev1.ResumedVM{BootMode: r.GetBootMode(), Steps: r.GetSteps(), CertificateJson: CertificateToWire(c)}
}

// ResumedFromWire reads how a machine went on.
func ResumedFromWire(w *hostwirev1.ResumedVM) (fleet.BootRecord, *fleet.Certificate) {
	_, boot := BootFromWire(&hostwirev1.CreateVMResult{BootMode: w.GetBootMode(), Steps: w.GetSteps()})
	return boot, CertificateFromWire(w.GetCertificateJson())
}
