//! Transactions: their semantics, on every kind of cache; and random ones against lists.

mod checks;
mod hazards;
mod kind;
mod lists;
mod paged;
mod random;
mod run;
mod semantics;

/// The whole body, for each kind of cache that has transactions.
macro_rules! kinds {
    ($($name:ident: $kind:ty,)+) => {
        $(mod $name {
            use super::semantics;

            kinds!(@each $kind:
                the_first_tokens_are_kept_and_the_rest_leaves_no_trace,
                rolled_back_or_dropped_it_is_as_before,
                a_child_commits_into_its_parent,
                a_path_is_kept_in_order_and_what_is_none_changes_nothing,
                other_changes_are_refused_while_it_is_open,
                a_refused_call_leaves_it_open_and_as_it_was,
                an_empty_cache_takes_another_shape_after_a_roll_back,
                room_that_is_asked_for_is_there,
                memory_that_runs_out_changes_nothing,
            );

            #[test]
            fn random_transactions_against_lists() {
                super::random::random_transactions::<$kind>(stringify!($name));
            }
        })+
    };
    (@each $kind:ty: $($test:ident,)+) => {
        $(#[test]
        fn $test() {
            semantics::$test::<$kind>();
        })+
    };
}

kinds! {
    kv_cache: kvtide_tensor::KvCache,
    rotating_kv_cache: kvtide_tensor::RotatingKvCache,
    rollback_cache: kvtide_tensor::RollbackCache,
    paged_sequence: super::paged::Paged,
}
