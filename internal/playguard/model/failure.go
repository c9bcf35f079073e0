package model

import (
	"regexp"
	"strings"
)

// Class says what follows from a failure.
type Class string

// Classes.
const (
	ClassTransient    Class = "transient"     // infrastructure; tried again with backoff
	ClassHostResource Class = "host_resource" // the host is full; no retry
	ClassUser         Class = "user"          // the definition or its code; no retry
	ClassRecoverable  Class = "recoverable"   // may heal by itself; evidence of health ends it
	ClassUnknown      Class = "unknown"       // no retry, raised to people
)

// Category says what the cause was.
type Category string

// Categories.
const (
	CategoryTimeout       Category = "timeout"
	CategoryConflict      Category = "container_conflict"
	CategoryStaleBuild    Category = "stale_build"
	CategoryOneShot       Category = "one_shot_exited"
	CategoryRepairsSpent  Category = "repairs_spent"
	CategoryNetwork       Category = "network"
	CategoryDaemon        Category = "daemon"
	CategoryPermission    Category = "permission"
	CategoryInterrupted   Category = "interrupted"
	CategoryRateLimited   Category = "registry_rate_limited"
	CategoryDiskFull      Category = "disk_full"
	CategoryPortBind      Category = "port_bind"
	CategoryImagePull     Category = "image_pull"
	CategoryInvalid       Category = "invalid_compose"
	CategoryUnhealthy     Category = "dependency_unhealthy"
	CategoryServiceExit   Category = "service_exit"
	CategoryVolumeMount   Category = "volume_mount"
	CategoryPlaceholder   Category = "placeholder_not_set"
	CategoryCloneFailed   Category = "clone_failed"
	CategoryBuildFailed   Category = "build_failed"
	CategoryComposeFailed Category = "compose_failed"
	CategoryUnknown       Category = "unknown"
)

// Failure is what a playground in error suffers from; the zero Failure is
// none.
type Failure struct {
	Class    Class      `json:"class"`
	Category Category   `json:"category"`
	Step     FailedStep `json:"step,omitempty"`
	Text     string     `json:"text,omitempty"` // first line of what was said, for people
}

// IsZero reports whether there is none.
func (f Failure) IsZero() bool { return f == Failure{} }

// Temporary reports whether Playguard may try again.
func (f Failure) Temporary() bool { return f.Class == ClassTransient || f.Class == ClassRecoverable }

// Recoverable reports whether a healthy look ends the failure.
func (f Failure) Recoverable() bool {
	switch f.Category {
	case CategoryTimeout, CategoryConflict, CategoryStaleBuild, CategoryOneShot, CategoryRepairsSpent:
		return true
	}
	return false
}

// FailedStep is the step that failed; it is asked only when no cause is found.
type FailedStep string

// Steps of the creation pipeline that can fail with a meaning of their own.
const (
	StepRender FailedStep = "render"
	StepClone  FailedStep = "clone"
	StepBuild  FailedStep = "build"
	StepPull   FailedStep = "pull"
	StepUp     FailedStep = "up"
	StepHealth FailedStep = "health"
	StepStop   FailedStep = "stop"
	StepDown   FailedStep = "down"
)

// Cause is a failure as a typed error tells it, which outranks text.
type Cause string

// Causes; the empty one is that of a command that ran to its end.
const (
	CauseLinkLost    Cause = "link_lost"
	CauseInterrupted Cause = "interrupted" // our own worker ended
	CauseTimeout     Cause = "timeout"
	CauseOneShot     Cause = "one_shot"
)

// Symptom is all that is known of a failed step.
type Symptom struct {
	Cause  Cause
	Status int // exit status, if the command ended
	Stderr string
	Step   FailedStep
}

type classRule struct {
	class    Class
	category Category
	text     *regexp.Regexp
}

func says(class Class, category Category, pattern string) classRule {
	return classRule{class, category, regexp.MustCompile(`(?i)` + pattern)}
}

// textRules are asked in order; the first match decides. What the host suffers
// from comes first, then the network, then what the definition asks for: a
// clone that failed for want of a route is a network failure.
var textRules = []classRule{
	says(ClassHostResource, CategoryDiskFull, `no space left on device|disk quota exceeded`),
	says(ClassTransient, CategoryPermission, `permission denied while trying to connect`),
	says(ClassTransient, CategoryDaemon, `cannot connect to the docker daemon|is the docker daemon running|error during connect`),
	says(ClassRecoverable, CategoryConflict, `conflict\. the container name|container name .* is already in use`),
	says(ClassUser, CategoryPortBind, `port is already allocated|address already in use`),
	says(ClassTransient, CategoryRateLimited, `toomanyrequests|rate limit`),
	says(ClassUser, CategoryUnhealthy, `is unhealthy|dependency failed to start`),
	says(ClassTransient, CategoryNetwork, `connection refused|connection reset|connection timed out|i/o timeout|tls handshake timeout|temporary failure in name resolution|could not resolve host|no such host|network is unreachable|no route to host|unexpected eof`),
	says(ClassUser, CategoryImagePull, `manifest unknown|manifest for .* not found|pull access denied|repository does not exist|no such image|unauthorized: `),
	says(ClassUser, CategoryVolumeMount, `invalid mount config|error mounting|bind source path does not exist|error while creating mount source`),
	says(ClassUser, CategoryPlaceholder, `variable is not set|required variable .* is missing|unresolved placeholder`),
	says(ClassUser, CategoryInvalid, `yaml: |validating .*: |invalid compose|refers to undefined|undefined service|additional propert`),
	says(ClassUser, CategoryServiceExit, `exited with code|exited \(\d+\)|didn't complete successfully`),
}

var stepRules = map[FailedStep]classRule{
	StepRender: {ClassUser, CategoryInvalid, nil},
	StepClone:  {ClassUser, CategoryCloneFailed, nil},
	StepBuild:  {ClassUser, CategoryBuildFailed, nil},
	StepPull:   {ClassUser, CategoryImagePull, nil},
	StepUp:     {ClassUser, CategoryComposeFailed, nil},
}

// Classify names a failure: typed errors first, then the exit status, then
// the text, and the step only if nothing else tells. A command that said
// nothing at all, or failed in a step without a meaning, is unknown.
func Classify(s Symptom) Failure {
	rule := classify(s)
	return Failure{Class: rule.class, Category: rule.category, Step: s.Step, Text: firstLine(s.Stderr)}
}

func classify(s Symptom) classRule {
	switch s.Cause {
	case CauseLinkLost:
		return classRule{class: ClassTransient, category: CategoryNetwork}
	case CauseInterrupted:
		return classRule{class: ClassTransient, category: CategoryInterrupted}
	case CauseOneShot:
		return classRule{class: ClassRecoverable, category: CategoryOneShot}
	}
	for _, r := range textRules[:2] { // a full or closed host explains a timeout too
		if r.text.MatchString(s.Stderr) {
			return r
		}
	}
	if s.Cause == CauseTimeout || s.Status == 124 || s.Status == 137 || s.Step == StepHealth {
		return classRule{class: ClassRecoverable, category: CategoryTimeout}
	}
	if s.Status == 143 {
		return classRule{class: ClassTransient, category: CategoryInterrupted}
	}
	for _, r := range textRules {
		if r.text.MatchString(s.Stderr) {
			return r
		}
	}
	if r, ok := stepRules[s.Step]; ok && strings.TrimSpace(s.Stderr) != "" {
		return r
	}
	return classRule{class: ClassUnknown, category: CategoryUnknown}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + "…"
	}
	return line
}
