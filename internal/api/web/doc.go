// Package web is what every route of the API is made of: routes and their
// requests, bounded bodies, answers, pages and event streams. The packages
// beside it hold the routes, one package for each area.
package web
