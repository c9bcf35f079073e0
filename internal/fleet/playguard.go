package fleet

// Entity types of Playguard's events.
const (
	EntityMarquee    = "marquee"
	EntityPlayground = "playground"
)

// ActorPlayguard is Playguard's loop.
const ActorPlayguard = "playguard"

// Events of marquees and playgrounds. The payload of those by the loop names
// the rule that decided and the lease epoch.
const (
	EventMarqueeAdded       = "marquee.added"
	EventMarqueeUpdated     = "marquee.updated"
	EventMarqueeRemoved     = "marquee.removed"
	EventMarqueeQuarantined = "marquee.quarantined"
	EventMarqueeReturned    = "marquee.returned"
	EventMarqueeAlarmed     = "marquee.alarmed"
	EventMarqueeOrphanFound = "marquee.orphan_found"

	EventMarqueeSweepArmed     = "marquee.sweep_armed"
	EventMarqueeSweepDisarmed  = "marquee.sweep_disarmed"
	EventMarqueeSweepHalted    = "marquee.sweep_halted"
	EventMarqueeSweepFailed    = "marquee.sweep_failed"
	EventMarqueeOrphanSwept    = "marquee.orphan_swept"
	EventMarqueeOrphanRestored = "marquee.orphan_restored"
	EventMarqueeOrphanPurged   = "marquee.orphan_purged"
	EventMarqueeTakenOver      = "marquee.taken_over"

	EventPlaygroundCreated           = "playground.created"
	EventPlaygroundUpdated           = "playground.updated"
	EventPlaygroundRequested         = "playground.requested"
	EventPlaygroundStateChanged      = "playground.state_changed"
	EventPlaygroundSuspected         = "playground.suspected"
	EventPlaygroundSkipped           = "playground.skipped"
	EventPlaygroundFlagged           = "playground.flagged"
	EventPlaygroundRolledOut         = "playground.rolled_out"
	EventPlaygroundRolloutFailed     = "playground.rollout_failed"
	EventPlaygroundOperationStarted  = "playground.operation_started"
	EventPlaygroundOperationEnded    = "playground.operation_ended"
	EventPlaygroundOperationTimedOut = "playground.operation_timed_out"
	EventPlaygroundAdopted           = "playground.adopted"
	EventPlaygroundForgotten         = "playground.forgotten"
	EventPlaygroundDestroyed         = "playground.destroyed"
)

// Dead letters of Playguard.
const (
	DeadLetterMarqueeQuarantined    DeadLetterKind = "marquee_quarantined"
	DeadLetterPlaygroundRepairs     DeadLetterKind = "playground_repairs_spent"
	DeadLetterPlaygroundDestruction DeadLetterKind = "playground_destroy_failed"
)
