package fleet

import "time"

// ObservedVM is one VM of ours as its host lists it.
type ObservedVM struct {
	ID         string
	UID        string
	Generation int64
	// Running is false when the host knows the VM has stopped.
	Running bool
	// Paused says that it stands still on purpose, without CPU and RAM.
	Paused bool
	// Exit is the host's durable record of the end, if it has one.
	Exit *ExitRecord
	// Health is the probe's last verdict, nil when there is none.
	Health *HealthStatus
}

// ExitRecord is a host's durable record of why a VM is no longer running.
type ExitRecord struct {
	UID    string    `json:"uid"`
	VMID   string    `json:"vm_id"`
	Cause  string    `json:"cause"` // vmm_exited, host_rebooted, guest_poweroff …
	Detail string    `json:"detail,omitempty"`
	At     time.Time `json:"at"`
}

// ObservationQuality says what may be concluded from a look at a host.
type ObservationQuality int

// Qualities. Only a complete look can tell absence.
const (
	Unseen ObservationQuality = iota
	Partial
	Complete
)

func (q ObservationQuality) String() string {
	return [...]string{"unseen", "partial", "complete"}[q]
}

// Observation is one look at one host. Its VM list can be read only from a
// complete one, so that "I could not look" never reads as "there is nothing".
type Observation struct {
	HostID string
	// ID names the look in evidence.
	ID string
	// Revision is the state's revision before the call was sent: a VM that
	// settled after it is not judged by this look.
	Revision uint64
	At       time.Time
	Took     time.Duration
	// Foreign counts VMs of other fleets; they are never listed or touched.
	Foreign int

	quality ObservationQuality
	reason  string
	vms     []ObservedVM
	exits   []ExitRecord
}

// Look is what every observation carries, whatever its quality.
type Look struct {
	HostID   string
	ID       string
	Revision uint64
	At       time.Time
	Took     time.Duration
}

func (l Look) observation() Observation {
	return Observation{HostID: l.HostID, ID: l.ID, Revision: l.Revision, At: l.At, Took: l.Took}
}

// SeenComplete makes a complete observation.
func SeenComplete(l Look, vms []ObservedVM, exits []ExitRecord, foreign int) Observation {
	o := l.observation()
	o.quality, o.vms, o.exits, o.Foreign = Complete, vms, exits, foreign
	return o
}

// SeenPartial makes an observation of a host that answered but cannot yet
// list all it has.
func SeenPartial(l Look, reason string) Observation {
	o := l.observation()
	o.quality, o.reason = Partial, reason
	return o
}

// NotSeen makes an observation of a host that could not be looked at.
func NotSeen(l Look, reason string) Observation {
	o := l.observation()
	o.quality, o.reason = Unseen, reason
	return o
}

// Quality says what may be concluded from the look.
func (o Observation) Quality() ObservationQuality { return o.quality }

// Reason says why the look is not complete.
func (o Observation) Reason() string { return o.reason }

// VMs returns the host's list of our VMs; ok is false unless the look was
// complete.
func (o Observation) VMs() (vms []ObservedVM, ok bool) {
	if o.quality != Complete {
		return nil, false
	}
	return o.vms, true
}

// Exits returns the host's exit records of our VMs; ok as for VMs.
func (o Observation) Exits() (exits []ExitRecord, ok bool) {
	if o.quality != Complete {
		return nil, false
	}
	return o.exits, true
}
