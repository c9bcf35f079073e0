package fleet

import "errors"

// Sentinels of what is not there.
var (
	ErrTrickScheduleNotFound     = errors.New("trick schedule not found")
	ErrNotificationRouteNotFound = errors.New("notification route not found")
)

// Entity types of what ends, runs once, and is told.
const (
	EntityTrickSchedule     = "trick_schedule"
	EntityNotificationRoute = "notification_route"
)

// ActorScheduler starts tricks by the clock; ActorNotifier tells people.
const (
	ActorScheduler = "scheduler"
	ActorNotifier  = "notifier"
)

// Events of playgrounds that end by themselves, and of tricks.
const (
	EventPlaygroundExpiring = "playground.expiring" // a warning, once for each lead
	EventPlaygroundExtended = "playground.extended"
	EventPlaygroundParked   = "playground.parked"
	EventPlaygroundExpired  = "playground.expired"

	EventTrickAttemptEnded = "trick.attempt_ended"
	EventTrickFinished     = "trick.finished"
	EventTrickCancelled    = "trick.cancelled"
	EventTrickLogsLost     = "trick.logs_lost"

	EventTrickScheduleCreated = "trick_schedule.created"
	EventTrickScheduleUpdated = "trick_schedule.updated"
	EventTrickScheduleRemoved = "trick_schedule.removed"
	EventTrickScheduleFired   = "trick_schedule.fired"
	EventTrickScheduleSkipped = "trick_schedule.skipped" // the run before still goes on
	EventTrickScheduleMissed  = "trick_schedule.missed"
	EventTrickScheduleFailed  = "trick_schedule.failed" // a run could not be begun

	EventNotificationRouteCreated = "notification_route.created"
	EventNotificationRouteUpdated = "notification_route.updated"
	EventNotificationRouteRemoved = "notification_route.removed"
	EventNotificationGivenUp      = "notification_route.given_up"
	EventNotificationMailChanged  = "notification_route.mail_changed"
)
