package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fusevm/fuse/internal/fleet"
)

// endWords say, after "because", why something ends by a rule; %s is the
// actor. A test holds them to the rules of the fleet: none goes without words.
var endWords = map[string]string{
	fleet.RuleManualDestroy:       "%s asked for it",
	fleet.RuleMissingFromProvider: "its host no longer had it running",
	fleet.RuleStuckTask:           "it was older than it may become",
	fleet.RuleIdleTimeout:         "nobody had used it for longer than its idle timeout",
	fleet.RuleTaskCompleted:       "%s said that its task is completed",
	fleet.RuleProvisionFailed:     "it could not be made",
	fleet.RuleCreateInterrupted:   "the control plane stopped while it was being made, and a machine that is half made is not trusted",
	fleet.RuleOrphan:              "no record of this fleet tracks it",
	fleet.RuleHostLost:            "its host was given up for lost",
	fleet.RuleHostDrained:         "%s drained its host",
	fleet.RuleSuperseded:          "it goes on elsewhere, and this copy is of an earlier generation",
}

// changeRules are the rules of events that end nothing.
var changeRules = map[string]bool{
	fleet.RuleRequested: true,
	fleet.RulePlacement: true,
	fleet.RuleSeen:      true,
	fleet.RuleSettled:   true,
	fleet.RuleRefused:   true,
	fleet.RuleRetention: true,
	fleet.RuleDelivery:  true,

	fleet.RuleHealthcheck: true,
	fleet.RuleBudget:      true,
	fleet.RuleUsed:        true,
}

// because is why something ends, in words.
func because(r fleet.Reason) string {
	words, ok := endWords[r.Rule]
	if !ok {
		words = "of rule " + strings.ReplaceAll(r.Rule, "_", " ")
	}
	if strings.Contains(words, "%s") {
		words = fmt.Sprintf(words, Actor(r.Actor))
	}
	return words
}

// Actor is who did something, as people say it.
func Actor(actor string) string {
	switch actor {
	case "":
		return "somebody unknown"
	case fleet.ActorReconcile:
		return "the reconcile loop"
	case fleet.ActorRecovery:
		return "the control plane, after its start"
	case fleet.ActorLifecycle:
		return "the control plane"
	case fleet.ActorHost:
		return "the host agent"
	case fleet.ActorPlayguard:
		return "Playguard"
	case fleet.ActorWebhooks:
		return "the sender of webhooks"
	case fleet.ActorMaster:
		return "the holder of the master token"
	}
	return cmp.Or(strings.TrimPrefix(actor, "user:"), "somebody unknown")
}

// told is what an event says: one sentence, and further lines of detail.
type told struct {
	text   string
	detail []string
}

func plain(text string) func(*fleet.Event) told {
	return func(*fleet.Event) told { return told{text: text} }
}

// withError is a sentence that the event's error, if any, ends.
func withError(text string) func(*fleet.Event) told {
	return func(e *fleet.Event) told {
		if e.Error == "" {
			return told{text: text}
		}
		return told{text: text + ": " + e.Error}
	}
}

// byActor is a sentence that begins with who did it.
func byActor(text string) func(*fleet.Event) told {
	return func(e *fleet.Event) told {
		if e.Reason == nil {
			return told{text: "Somebody " + text}
		}
		return told{text: upper(Actor(e.Reason.Actor)) + " " + text}
	}
}

// about is a sentence on the entity.
func about(format string) func(*fleet.Event) told {
	return func(e *fleet.Event) told { return told{text: fmt.Sprintf(format, e.EntityID)} }
}

// withErrorAbout is about, with the event's error.
func withErrorAbout(format string) func(*fleet.Event) told {
	return func(e *fleet.Event) told { return withError(about(format)(e).text)(e) }
}

// collected is about, with the grounds.
func collected(format string) func(*fleet.Event) told {
	return func(e *fleet.Event) told {
		t := withErrorAbout(format)(e)
		if e.Reason != nil && e.Reason.Evidence != "" {
			t.detail = append(t.detail, upper(e.Reason.Evidence))
		}
		return t
	}
}

// pauses is a sentence on who pauses or resumes, and why if nobody asked.
func pauses(text string) func(*fleet.Event) told {
	return func(e *fleet.Event) told {
		t := byActor(text)(e)
		if e.Reason != nil {
			switch e.Reason.Rule {
			case fleet.RuleIdleTimeout:
				t.text += ", because nobody had used it for longer than its idle timeout"
			case fleet.RuleUsed:
				t.text += ", because it is used"
			}
		}
		return t
	}
}

// sentences tell every event there is; a test holds them to the fleet's list.
var sentences = map[string]func(*fleet.Event) told{
	fleet.EventVMProvisioning: func(e *fleet.Event) told {
		if e.Reason == nil {
			return told{text: "Asked for"}
		}
		return told{text: "Asked for by " + Actor(e.Reason.Actor)}
	},
	fleet.EventVMScheduled:      scheduled,
	fleet.EventVMHostRefused:    hostRefused,
	fleet.EventVMRunning:        running,
	fleet.EventVMFailed:         func(e *fleet.Event) told { return told{withError("Making it failed")(e).text, steps(e)} },
	fleet.EventVMDraining:       func(e *fleet.Event) told { return drainBegan(e) },
	fleet.EventVMDrained:        plain("Its services are stopped"),
	fleet.EventVMDrainFailed:    withError("Stopping its services failed; it stays draining"),
	fleet.EventVMDrainSkipped:   plain("There was nothing to stop before the end"),
	fleet.EventVMDestroying:     destroying,
	fleet.EventVMRemoved:        removed,
	fleet.EventVMRecovered:      plain("Found running on its host after the control plane had started again"),
	fleet.EventVMForked:         plain("A copy of it was made"),
	fleet.EventVMPausing:        pauses("is letting it stand still"),
	fleet.EventVMPaused:         plain("It stands still, without CPU and memory"),
	fleet.EventVMPauseFailed:    withError("It could not be paused and runs on"),
	fleet.EventVMResuming:       pauses("is letting it go on"),
	fleet.EventVMResumed:        plain("It goes on"),
	fleet.EventVMResumeFailed:   withError("It could not be resumed and stands still"),
	fleet.EventVMTokenRotated:   byActor("had its token and certificate replaced"),
	fleet.EventVMAmended:        byActor("changed its limits, tags, secrets or ports"),
	fleet.EventVMRebooted:       rebooted,
	fleet.EventVMIdleSuspected:  plain("Nobody has used it for longer than its idle timeout; unless somebody does, the next cycle ends it"),
	fleet.EventVMHealthChanged:  healthChanged,
	fleet.EventVMDestroyRetried: plain("Its host had not confirmed the end; asked it again"),
	fleet.EventVMOrphanDestroy:  about("Machine %s, which no record tracks, was destroyed at its host"),
	fleet.EventVMOrphanDead:     about("Machine %s, which no record tracks, could not be destroyed; it is left alone from now on"),

	fleet.EventTaskAssigned:       about("Task %s was assigned to it"),
	fleet.EventTaskRunning:        about("Task %s runs"),
	fleet.EventTaskCompleted:      about("Task %s is completed"),
	fleet.EventTaskFailed:         taskFailed,
	fleet.EventTaskStuckSuspected: plain("It is older than it may become; unless that changes, the next cycle ends it"),

	fleet.EventSecretsDeployed:       secretsDeployed,
	fleet.EventSecretsRecovered:      plain("Its secrets were handed to it again"),
	fleet.EventSecretsRecoveryFailed: withError("Its secrets could not be handed to it again"),

	fleet.EventSnapshotCreating:  about("Snapshot %s is being taken"),
	fleet.EventSnapshotCreated:   about("Snapshot %s was taken"),
	fleet.EventSnapshotFailed:    withErrorAbout("Snapshot %s could not be taken"),
	fleet.EventSnapshotRestoring: about("It is being put back to snapshot %s"),
	fleet.EventSnapshotLost:      withErrorAbout("Snapshot %s is of no use any more"),
	fleet.EventSnapshotOrphan:    about("Bytes of a snapshot %s, which no record tracks, were deleted at its host"),
	fleet.EventSnapshotRestored:  about("Snapshot %s was restored"),
	fleet.EventSnapshotDeleted:   about("Snapshot %s was deleted"),
	fleet.EventSnapshotGCDeleted: collected("Snapshot %s was collected"),
	fleet.EventSnapshotGCFailed:  collected("Snapshot %s was to be collected but could not be deleted"),

	fleet.EventSnapshotDeleteFailed:  withErrorAbout("Snapshot %s was to be deleted and is not yet"),
	fleet.EventSnapshotRestoreFailed: withErrorAbout("It could not be put back to snapshot %s"),

	fleet.EventSnapshotInterrupted: about("What was being done with snapshot %s was cut short by the end of the control plane"),

	fleet.EventArtifactPulled:    about("Artifact %s was copied to a host"),
	fleet.EventArtifactGCDeleted: about("Artifact %s was not used any more and was deleted"),
	fleet.EventArtifactGCFailed:  about("Artifact %s was not used any more but could not be deleted"),

	fleet.EventHostRegistered:  about("Host %s was registered"),
	fleet.EventHostCordoned:    about("Host %s takes no new environments"),
	fleet.EventHostUncordoned:  about("Host %s takes environments again"),
	fleet.EventHostRemoved:     about("Host %s was removed"),
	fleet.EventHostUnreachable: about("Host %s does not answer; nothing there is judged until it does"),
	fleet.EventHostReachable:   about("Host %s answers again"),
	fleet.EventHostCapacity:    about("Host %s has another capacity than before"),

	fleet.EventHostLabelled:    byActor("changed the labels of the host"),
	fleet.EventHostRebooted:    about("Host %s was started anew; what it ran before is gone"),
	fleet.EventHostReturned:    about("Host %s came back, and what it runs has been compared with what was decided meanwhile"),
	fleet.EventHostForgotten:   about("Host %s was given up for lost, with everything on it"),
	fleet.EventHostCertificate: about("Host %s shows another certificate than the registered one, and is refused"),
	fleet.EventHostRepinned:    byActor("accepted another certificate of the host"),

	fleet.EventHostDrainStarted:   about("Host %s is being emptied"),
	fleet.EventHostDrainProgress:  about("Fewer environments are left on host %s, which is being emptied"),
	fleet.EventHostDrainCancelled: about("Host %s is not emptied any further"),
	fleet.EventHostDrained:        about("Host %s is empty and takes no new environments"),

	fleet.EventJoinTokenCreated: byActor("made a token with which hosts register themselves"),
	fleet.EventJoinTokenRevoked: byActor("ended a token with which hosts register themselves"),
	fleet.EventJoinRefused:      plain("A host that wanted to join was refused"),

	fleet.EventHostFenced:        about("Host %s takes no changes from this server's state store"),
	fleet.EventHostStoreAccepted: about("Host %s now takes changes from this server's state store instead of another one"),
	fleet.EventHostPurged:        about("What another fleet left on host %s was destroyed"),

	fleet.EventReconcileBudget:  plain("As many environments were ended as one cycle or hour may end; the rest waits"),
	fleet.EventReconcilePaused:  byActor("paused the destruction of environments"),
	fleet.EventReconcileResumed: byActor("let environments be destroyed again"),

	fleet.EventAuthFailed:   about("A request from %s showed no valid token"),
	fleet.EventIPRejected:   about("A request from %s came from an address that may not use the server"),
	fleet.EventQuotaSet:     about("The limits of %s were changed"),
	fleet.EventQuotaRemoved: about("The limits of %s are the server's defaults again"),

	fleet.EventKeyCreated: about("The API key %s was made"),
	fleet.EventKeyRevoked: about("The API key %s was revoked"),

	fleet.EventWebhookCreated:  about("Webhook %s was made"),
	fleet.EventWebhookUpdated:  about("Webhook %s was changed"),
	fleet.EventWebhookDeleted:  about("Webhook %s was deleted"),
	fleet.EventWebhookDisabled: about("Webhook %s sends nothing any more"),
	fleet.EventWebhookDeliveryFailed: func(e *fleet.Event) told {
		return withError("A delivery of webhook " + e.EntityID + " was given up")(e)
	},
	fleet.EventWebhookResync: about("Webhook %s was so far behind that events are gone; it goes on with those that are kept"),

	fleet.EventMarqueeAdded:       byActor("registered the marquee"),
	fleet.EventMarqueeUpdated:     byActor("changed what is known of the marquee"),
	fleet.EventMarqueeRemoved:     byActor("had the marquee forgotten; nothing on it was touched"),
	fleet.EventMarqueeQuarantined: withError("The marquee is not worked on any more"),
	fleet.EventMarqueeReturned:    plain("The marquee is worked on again"),
	fleet.EventMarqueeAlarmed:     withError("Something about the marquee needs a person"),
	fleet.EventMarqueeOrphanFound: withError("Something of ours on the marquee has no record; it is left as it is"),

	fleet.EventMarqueeSweepArmed:     byActor("armed the orphan sweep on the marquee"),
	fleet.EventMarqueeSweepDisarmed:  byActor("disarmed the orphan sweep on the marquee"),
	fleet.EventMarqueeSweepHalted:    withError("The orphan sweep stopped on every marquee"),
	fleet.EventMarqueeSweepFailed:    withError("The orphan sweep could not do its work"),
	fleet.EventMarqueeOrphanSwept:    withError("Something without a record was taken out of use, and is kept for a day"),
	fleet.EventMarqueeOrphanRestored: withError("What the sweep had set aside is back in its place"),
	fleet.EventMarqueeOrphanPurged:   withError("What the sweep had set aside is gone; its volumes are left"),
	fleet.EventMarqueeTakenOver:      byActor("took over what another installation had put on the marquee"),

	fleet.EventPlaygroundCreated:           byActor("asked for the playground"),
	fleet.EventPlaygroundUpdated:           byActor("gave the playground another definition"),
	fleet.EventPlaygroundRequested:         playgroundRequested,
	fleet.EventPlaygroundStateChanged:      playgroundMoved,
	fleet.EventPlaygroundSuspected:         withError("It does not look as it should; if the next look shows the same, something is done about it"),
	fleet.EventPlaygroundSkipped:           withError("Nothing was done, so that no work is lost"),
	fleet.EventPlaygroundFlagged:           withError("It needs a person"),
	fleet.EventPlaygroundRolledOut:         plain("Its new definition is at work"),
	fleet.EventPlaygroundRolloutFailed:     withError("Its new definition did not come up, and the one before stays at work"),
	fleet.EventPlaygroundOperationStarted:  operation("began"),
	fleet.EventPlaygroundOperationEnded:    operation("ended"),
	fleet.EventPlaygroundOperationTimedOut: operation("passed its time limit and was ended"),
	fleet.EventPlaygroundAdopted:           byActor("took the playground back into the records"),
	fleet.EventPlaygroundForgotten:         byActor("had the playground forgotten; nothing on its marquee was touched"),
	fleet.EventPlaygroundDestroyed:         plain("Nothing of it is left on its marquee"),

	fleet.EventPlaygroundBranchMoved:   plain("Its checkout went forward with its branch"),
	fleet.EventPlaygroundBranchTrouble: withError("It does not follow its branch; what runs goes on"),
	fleet.EventPlaygroundBranchMended:  plain("It follows its branch again"),
	fleet.EventSecretSet:               byActor("set the secret"),
	fleet.EventSecretRemoved:           byActor("had the secret forgotten"),
	fleet.EventSecretRefreshed:         plain("Its source gave it a new value"),
	fleet.EventSecretStale:             withError("Its source gives no new value"),

	fleet.EventPlaygroundExpiring:       expiring,
	fleet.EventPlaygroundExtended:       byActor("gave the playground another end"),
	fleet.EventPlaygroundParked:         withError("Its time is over, and it stays because of work that is nowhere else"),
	fleet.EventPlaygroundExpired:        plain("Its time was over, and it was taken away"),
	fleet.EventTrickAttemptEnded:        trickEnded("An attempt of the trick ended"),
	fleet.EventTrickFinished:            trickEnded("The trick is finished"),
	fleet.EventTrickCancelled:           byActor("cancelled the trick"),
	fleet.EventTrickLogsLost:            withError("What the trick wrote could not be kept"),
	fleet.EventTrickScheduleCreated:     byActor("made the schedule"),
	fleet.EventTrickScheduleUpdated:     byActor("changed the schedule"),
	fleet.EventTrickScheduleRemoved:     byActor("removed the schedule"),
	fleet.EventTrickScheduleFired:       plain("The schedule started a trick"),
	fleet.EventTrickScheduleSkipped:     withError("The schedule started nothing, since the run before still goes on"),
	fleet.EventTrickScheduleMissed:      withError("The schedule missed runs"),
	fleet.EventTrickScheduleFailed:      withError("The schedule could not start a trick"),
	fleet.EventNotificationRouteCreated: byActor("made the notification route"),
	fleet.EventNotificationRouteUpdated: byActor("changed the notification route"),
	fleet.EventNotificationRouteRemoved: byActor("removed the notification route"),
	fleet.EventNotificationGivenUp:      withError("A notification was given up"),
	fleet.EventNotificationMailChanged:  byActor("changed how mail is sent"),
}

// Sentence is what an event says, in one line for people.
func Sentence(e *fleet.Event) string { return tell(e).text }

func tell(e *fleet.Event) told {
	if say := sentences[e.Type]; say != nil {
		return say(e)
	}
	return withError(strings.NewReplacer(".", " ", "_", " ").Replace(e.Type))(e)
}

func read[T any](e *fleet.Event) (v T, ok bool) {
	return v, len(e.Payload) > 0 && json.Unmarshal(e.Payload, &v) == nil
}

// Placement is the payload of vm.scheduled: the decision, and which gate refused
// how many hosts.
type Placement struct {
	fleet.PlacementDecision
	Refused []string `json:"refused,omitempty"`
}

// HostRefused is the payload of vm.host_refused.
type HostRefused struct {
	HostID string `json:"host_id"`
	Why    string `json:"why"`
	Try    int    `json:"try"` // counted from 1
}

func hostRefused(e *fleet.Event) told {
	r, ok := read[HostRefused](e)
	if !ok {
		return told{text: "Its host refused to make it; another is tried"}
	}
	return told{text: fmt.Sprintf("Host %s refused to make it, another is tried: %s", r.HostID, r.Why)}
}

func scheduled(e *fleet.Event) told {
	p, ok := read[Placement](e)
	if !ok || p.HostID == "" {
		return told{text: "Placed on a host"}
	}
	how := "the emptiest of those that qualified"
	if p.Policy == fleet.PlacementBinpack {
		how = "the fullest that had room"
	}
	if p.Candidates == 1 {
		how = "the only one that qualified"
	}
	t := told{text: fmt.Sprintf("Placed on host %s, %s", p.HostID, how)}
	t.detail = append(t.detail, fmt.Sprintf("%s qualified; policy %s; %d CPUs and %d MB of memory stay free there",
		count(p.Candidates, "host"), p.Policy, p.HeadroomCPUs, p.HeadroomRam))
	if len(p.Refused) > 0 {
		t.detail = append(t.detail, "of the others "+strings.Join(p.Refused, ", "))
	}
	return t
}

func steps(e *fleet.Event) []string {
	b, ok := read[fleet.BootRecord](e)
	if !ok {
		return nil
	}
	var parts []string
	for _, s := range b.Steps {
		if s.Took >= time.Millisecond {
			parts = append(parts, s.Step+" "+Span(s.Took))
		}
	}
	if parts == nil {
		return nil
	}
	return []string{"steps: " + strings.Join(parts, ", ")}
}

func running(e *fleet.Event) told {
	t := told{text: "Running", detail: steps(e)}
	b, _ := read[fleet.BootRecord](e)
	var all time.Duration
	for _, s := range b.Steps {
		if !strings.Contains(s.Step, "/") { // else a part of another step
			all += s.Took
		}
	}
	switch {
	case all > 0 && b.Mode != "":
		t.text = fmt.Sprintf("Running, %s after it was asked for (%s boot)", Span(all), b.Mode)
	case all > 0:
		t.text = fmt.Sprintf("Running, %s after it was asked for", Span(all))
	}
	return t
}

func drainBegan(e *fleet.Event) told {
	if e.Reason == nil {
		return told{text: "Its services are being stopped"}
	}
	return told{text: "Its services are being stopped, as " + Actor(e.Reason.Actor) + " asked"}
}

func destroying(e *fleet.Event) told {
	if e.Reason == nil {
		return told{text: "Its end was decided"}
	}
	return told{text: "Its end was decided, because " + because(*e.Reason)}
}

func removed(e *fleet.Event) told {
	text := "Gone; what it had reserved is free again"
	if e.State == fleet.VMStateFailed {
		text = "Failed and undone; what it had reserved is free again"
	}
	return told{text: text}
}

func taskFailed(e *fleet.Event) told {
	text := "Task " + e.EntityID + " failed"
	if e.Reason == nil {
		return withError(text)(e)
	}
	if _, ends := endWords[e.Reason.Rule]; ends {
		return told{text: text + ", because " + because(*e.Reason)}
	}
	return withError(text)(e)
}

func rebooted(e *fleet.Event) told {
	p, _ := read[fleet.Reboot](e)
	if p.Cause == "panic" {
		return told{text: "The kernel of its machine panicked, and booted again"}
	}
	return told{text: "Its machine rebooted of its own will"}
}

func healthChanged(e *fleet.Event) told {
	p, ok := read[map[string]any](e)
	for _, key := range []string{"to", "health", "status", "state"} {
		if v, is := p[key].(string); ok && is && v != "" {
			return told{text: "Its own health check says: " + v}
		}
	}
	return told{text: "Its own health check changed its verdict"}
}

func secretsDeployed(e *fleet.Event) told {
	p, ok := read[struct {
		Count int      `json:"count"`
		Names []string `json:"names"`
	}](e)
	if !ok {
		return told{text: "Its secrets were handed to it"}
	}
	return told{text: count(p.Count, "secret") + " handed to it", detail: []string{"names: " + strings.Join(p.Names, ", ")}}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func upper(s string) string {
	_, first := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:first]) + s[first:]
}

// Span renders a duration as people say it.
func Span(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
