// Package placing holds the routes of quotas and of placements run dry.
package placing
