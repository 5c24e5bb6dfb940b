"""rows(): each key of a job file with a value that differs from its default, and the expected effect. keys_test.py runs
them."""

CURVE = {"initial_multiplier": 0.5, "phases": [
    {"mode": "steps", "steps": 2, "target_multiplier": 1.0, "curve": {"type": "poly"}},
    {"mode": "percentage", "percentage": 0.75, "target_multiplier": 0.8, "curve": {"type": "poly"}},
    {"mode": "rest", "target_multiplier": 0.1, "curve": {"type": "poly"}}]}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 16, "factor": 2.0}


# How a value's effect is observed: each takes the result without the value and the result with it ------------------------
def numbers(without, with_it):
    """Losses, norms, learning rates or counts in the log, or the exported weights, change."""
    return not with_it.error and (without.steps, without.weights) != (with_it.steps, with_it.weights)


def log(text):
    """The console log contains this text with the value, and not without it."""
    return lambda without, with_it: not with_it.error and text in with_it.log and text not in without.log


def less_log(without, with_it):
    return not with_it.error and len(with_it.log) < len(without.log)


def events(text):
    return lambda without, with_it: text in with_it.events and text not in without.events


def file(name):
    return lambda without, with_it: not with_it.error and name in with_it.files and name not in without.files


def refused(*words):
    """The job is refused in one line with these words."""
    def look(without, with_it):
        return not without.error and with_it.error and all(word in with_it.error for word in words)
    return look


def same_as(path, value):
    """With the other spelling the job is the same bit for bit, so the rows of those keys test these keys too."""
    return ("same", path, value)


def seen_by(path, test):
    """Another test covers the key: on several ranks, on a GPU, in memory or in time."""
    return ("test", path, test)


def unbuilt(key):
    return refused(f"{key} = ", "not built in this version")


class Row:
    """`given`: other values, set with and without the tested one. `at`: the path of the value, if not the key's."""

    def __init__(self, value, *, look, given=None, at=None, model="moe"):
        self.value, self.look, self.given, self.at, self.model = value, look, given or {}, at, model


def tests(path, test):
    return Row(None, look=seen_by(path, test))


def loader_rows():
    sampler, stream = "tests/data/order/global_batch_sampler_test.cpp", "tests/data/build/token_stream_test.cpp"
    return {
        "global_batch_size": Row(16, look=numbers),
        "microbatch_size": Row(3, look=refused("global_batch_size", "microbatch_size")),
        "num_workers": tests("tests/data/loader/ordered_workers_test.cpp", "Work_at_the_same_time"),
        "shard_indexing_mode": tests(sampler, "Deals_each_global_batch_in_ranges_when_chunked"),
        "shuffle": Row(True, look=numbers, given={"data.shuffle": False}),
        "drop_last": tests(stream, "Ends_with_a_shorter_pack_unless_the_rest_is_dropped"),
        "pin_memory": tests(stream, "Hands_out_tensors_that_are_pinned_only_where_there_is_a_gpu"),
        "persistent_workers": tests(stream, "Has_workers_that_outlive_a_pass"),
        "prefetch_factor": tests("tests/data/loader/ordered_workers_test.cpp", "Compute_no_further_ahead_than_allowed"),
        "timeout": tests("tests/data/loader/ordered_workers_test.cpp", "Give_up_waiting_after_the_timeout_and_can_wait_again"),
    }


def data_rows():
    """Keys of sources and views. Other kinds and the sources of mixtures share them (keys_test.py)."""
    kinds, cache = "tests/data/build/token_stream_kinds_test.cpp", "tests/data/text/token_cache_test.cpp"
    text = "tests/data/build/token_stream_text_test.cpp"
    tokenised, streamed = tests(text, "Is_tokenised_as_the_keys_say"), tests(text, "Is_the_stream_that_the_keys_describe")
    pairs = "tests/data/build/pair_stream_test.cpp"
    every_document = tests(kinds, "Have_every_document_once_in_a_pass")
    return {
        "data[text].tokenizer": tokenised,
        "data[text].end_of_document": tokenised,
        "data[text].add_special_tokens": tokenised,
        "data[text].bad_rows": tests("tests/data/bad_data_test.cpp",
                                     "Are_left_out_and_counted_where_the_policy_says_so"),
        "data[text].num_proc": tests(cache, "Is_the_same_for_any_number_of_threads"),
        "data[text].cache": tests(text, "Is_kept_where_the_cache_is"),
        "data[text].view": every_document,
        "data[text].view[documents].long_documents": tests(kinds, "Refuse_or_cut_documents_longer_than_a_sequence"),
        "data[text].view[documents].sort_buffer_size": tests(text, "Is_sorted_in_buffers_of_the_size_that_the_key_says"),
        "data[text].view[packed].long_documents": tests(kinds, "Refuse_or_cut_documents_longer_than_a_sequence"),
        "data[text].view[packed].buffer_size": tests(text, "Is_packed_in_buffers_of_the_size_that_the_key_says"),
        "data[text].view[streamed].long_documents": streamed,
        "data[text].view[streamed].buffer_size": streamed,
        "data[text].view[streamed].tokens_per_step": streamed,
        "data[jsonl].column": tokenised,
        "data[jsonl].prompt_column": tests(kinds, "Do_not_predict_the_prompts_of_pairs"),
        "data[jsonl].messages_column": tests(kinds, "Predict_what_the_assistant_of_a_conversation_says"),
        "data[jsonl].pairs": tests(pairs, "Has_two_rows_for_each_pair_with_labels_of_the_answers"),
        "data[jsonl].pairs.format": tests(pairs, "Has_keys_that_fit_together"),
        "data[jsonl].pairs.chosen_column": tests(pairs, "Has_two_rows_for_each_pair_with_labels_of_the_answers"),
        "data[jsonl].pairs.rejected_column": tests(pairs, "Has_two_rows_for_each_pair_with_labels_of_the_answers"),
        "data[jsonl].pairs.prompt_column": tests(pairs, "Has_two_rows_for_each_pair_with_labels_of_the_answers"),
        "data[jsonl].chat_template": tests(kinds, "Predict_what_the_assistant_of_a_conversation_says"),
        "data[jsonl].chat_template_kwargs": tests("tests/tokenizer/chat/chat_renderer_test.cpp",
                                                  "Have_the_variables_that_options_give"),
        "data[jsonl].tools_column": tests("tests/tools/tokenize_test.py",
                                          "test_conversations_have_the_ids_and_masks_of_transformers"),
        "data[jsonl].python": tests("tests/tokenizer/chat/chat_renderer_test.cpp",
                                    "Are_refused_by_name_where_a_template_is_missing_or_wrong"),
        "data[arrow].split": tests(text, "Is_that_of_the_split_in_folders_of_datasets"),
        "data[tokens].end_of_document": every_document,
        "data[mixture].sources": tests("tests/data/sequences/dataset_views_test.cpp",
                                       "Ends_before_a_source_begins_again_and_goes_on_in_the_next_epoch"),
        "data[mixture].sources[].weight": tests(kinds, "Refuse_the_position_of_another_order"),
        "data[mixture].sources[].source": tests(kinds, "Have_the_same_samples_in_a_step_on_any_number_of_ranks_and_workers"),
    }


def sample_rows():
    of = "tests/loop/language_model/text_samples_test.cpp"
    encoded = tests(of, "Text_are_encoded_and_end_as_the_data_is")
    return {
        "sample": tests("tests/program/run_test.py", "test_samples_are_written_in_the_form_of_the_data"),
        "sample.prompts": tests(of, "Bytes_are_what_a_model_of_bytes_generates"),
        "sample.tokenizer": tests(of, "Token_ids_have_the_tokenizer_that_is_named"),
        "sample.stop_at": encoded,
        "sample.num_tokens": tests(of, "Bytes_are_what_a_model_of_bytes_generates"),
        "sample.temperature": encoded,
        "sample.top_k": tests(of, "Bytes_are_drawn_as_generate_draws_them"),
        "sample.top_p": tests(of, "Bytes_are_drawn_as_generate_draws_them"),
    }


def schedule_rows():
    curve = "lr_scheduler[piecewise].scheduler"
    phases = "lr_scheduler.scheduler.phases"
    given = {"lr_scheduler.scheduler": CURVE, "trainer.schedule.total_steps": 8}
    rows = {
        f"{curve}.initial_multiplier": Row(0.1, look=numbers, given=given),
        f"{curve}.phases": Row(CURVE["phases"][2:], look=numbers, given=given),
        f"{curve}.phases[][steps].steps": Row(1, look=numbers, given=given, at=f"{phases}.0.steps"),
        f"{curve}.phases[][percentage].percentage": Row(0.5, look=numbers, given=given, at=f"{phases}.1.percentage"),
    }
    for index, mode in enumerate(("steps", "percentage", "rest")):
        for name, value in {"target_multiplier": 0.6, "curve": {"type": "linear"}, "curve[poly].power": 3.0}.items():
            at = f"{phases}.{index}.{name.replace('[poly]', '')}"
            rows[f"{curve}.phases[][{mode}].{name}"] = Row(value, look=numbers, given=given, at=at)
    for name, values in {"constant": {}, "linear": {"min_ratio": 0.5}, "cosine": {"min_ratio": 0.5},
                         "wsd": {"decay_steps": 3, "decay_share": 0.9, "min_ratio": 0.5, "decay_curve": {"type": "cosine"}},
                         "inverse_sqrt": {"timescale": 3}}.items():
        given = {"lr_scheduler": {"name": name, "warmup_steps": 2}, "trainer.schedule.total_steps": 8}
        for key, value in {"warmup_steps": 4, "warmup_share": 0.5, **values}.items():
            here = given | {"lr_scheduler.warmup_steps": 0} if key == "warmup_share" else given
            if (name, key) == ("inverse_sqrt", "warmup_share"):
                here = {"lr_scheduler": {"name": name, "timescale": 2}, "trainer.schedule.total_steps": 8}
            if name == "wsd" and key not in ("warmup_steps", "warmup_share"):
                other = {} if key in ("decay_steps", "decay_share") else {"decay_share": 0.5}
                here = {"lr_scheduler": {"name": name, "warmup_steps": 1, **other}, "trainer.schedule.total_steps": 8}
            rows[f"lr_scheduler[{name}].{key}"] = Row(value, look=numbers, given=here)
    wsd = {"name": "wsd", "decay_share": 0.5, "decay_curve": {"type": "poly"}}
    rows["lr_scheduler[wsd].decay_curve[poly].power"] = Row(
        3.0, look=numbers, given={"lr_scheduler": wsd, "trainer.schedule.total_steps": 8}, at="lr_scheduler.decay_curve.power")
    return rows


def rope_rows():
    rope = "model_provider.model.rope_scaling"
    heads = {"model_provider.model.layer.head_dim": 64}  # yarn depends on the dims of a head
    rows = {rope: Row({"type": "linear", "factor": 2.0}, look=numbers),
            f"{rope}[ntk]": Row({"type": "ntk", "factor": 2.0}, look=refused("ntk"), at=rope)}
    for record, others in (
            ({"type": "linear", "factor": 2.0}, {"factor": 3.0}),
            (YARN, {"factor": 2.0, "original_max_position_embeddings": 1024, "beta_fast": 16.0, "beta_slow": 2.0,
                    "truncate": True, "attention_factor": 1.5}),
            (LLAMA3, {"factor": 2.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0,
                      "original_max_position_embeddings": 8}),
            (LONGROPE, {"short_factor": [1.5] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 64,
                        "factor": 4.0, "attention_factor": 1.5})):
        for name, value in others.items():
            # Short factors apply to a model within its original positions.
            short = {"original_max_position_embeddings": 1024} if name == "short_factor" else {}
            given = {rope: record | short} | (heads if record is YARN else {})
            rows[f"{rope}[{record['type']}].{name}"] = Row(value, look=numbers, given=given)
    scales = YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}
    for name in ("mscale", "mscale_all_dim"):
        rows[f"{rope}[yarn].{name}"] = Row(0.9, look=numbers, given={rope: scales})
    return rows


def layer_rows():
    layer = "model_provider.model.layer"
    eager = {f"{layer}.sdpa_backend": {"kind": "torch"}}
    variables = "tests/blocks/backend_variables_test.cpp"
    return {
        f"{layer}.hidden_size": Row(48, look=numbers),
        f"{layer}.intermediate_size": Row(32, look=numbers),
        f"{layer}.num_experts": Row(4, look=numbers),
        f"{layer}.experts_top_k": Row(3, look=numbers),
        f"{layer}.num_attention_heads": Row(2, look=numbers),
        f"{layer}.num_key_value_heads": Row(1, look=numbers),
        f"{layer}.rms_norm_eps": Row(1e-2, look=numbers),
        f"{layer}.head_dim": Row(16, look=numbers),
        f"{layer}.router_renormalize_probabilities": Row(False, look=numbers),
        f"{layer}.router_auxiliary_loss_coefficient": Row(0.5, look=numbers),
        f"{layer}.router_bias_update_rate": Row(0.5, look=refused("router_bias_update_rate")),
        f"{layer}.dense_layers": Row({"indices": [0], "intermediate_size": 32}, look=numbers),
        f"{layer}.dense_layers.indices": Row(
            [1], look=numbers, given={"model_provider.model.num_hidden_layers": 2,
                                      f"{layer}.dense_layers": {"indices": [0], "intermediate_size": 32}}),
        f"{layer}.dense_layers.intermediate_size": Row(
            24, look=numbers, given={f"{layer}.dense_layers": {"indices": [0], "intermediate_size": 32}}),
        f"{layer}.sdpa_backend": Row({"kind": "eager"}, look=numbers),
        f"{layer}.sdpa_backend[torch].backends": Row(["MATH"], look=numbers, given=eager),
        f"{layer}.grouped_mm_backend": tests(variables, "Of_grouped_products_decides_where_the_configuration_is_silent"),
    }


def mesh_rows():
    two_ranks = Row(2, look=log("2 x cpu"))
    return {
        "mesh.pipeline_parallel": Row(2, look=log("2 x cpu"), given={"model_provider.model.num_hidden_layers": 2,
                                                                         "trainer.checkpointing.period_steps": "disable"}),
        "mesh.data_parallel_replicate": two_ranks,
        "mesh.data_parallel_shard": two_ranks,
        "mesh.context_parallel_replicate": two_ranks,
        "mesh.context_parallel_shard": two_ranks,
        "mesh.tensor_parallel": Row(2, look=log("2 x cpu"), model="dense"),
        "mesh.expert_parallel": Row(4, look=refused("expert_parallel", "2"), given={"mesh.data_parallel_replicate": 2}),
    }


def fsdp_rows():
    fsdp, tests_of = "model_provider.fsdp", "tests/parallelism/fsdp/fsdp_test.cpp"
    sharded = {"mesh.data_parallel_shard": 2, "model_provider.dtype": "bfloat16"}
    processes = {"mesh.data_parallel_shard": 2, "launch.ranks": "processes"}
    return {
        f"{fsdp}.reshard_after_forward": tests(tests_of, "Gathers_once_a_step_when_it_never_reshards"),
        f"{fsdp}.gradient_dtype": Row("bfloat16", look=numbers, given=sharded),
        f"{fsdp}.reduce_on_last_microbatch": tests(
            "tests/layout/fsdp_memory_test.cpp", "Has_all_full_gradients_when_it_reduces_once_a_step"),
        f"{fsdp}.gather": Row("copy_engine", look=refused("gather = copy_engine"), given=processes),
        f"{fsdp}.reduce": Row("copy_engine", look=refused("reduce = copy_engine"), given=processes),
        "model_provider.tensor_parallel.exchange": Row("copy_engine", look=refused("exchange = copy_engine"), model="dense",
                                                       given={"mesh.tensor_parallel": 2, "launch.ranks": "processes"}),
        "model_provider.context_parallel.attention": Row("heads", look=refused("attention", "got heads"), model="dense",
                                                         given={"mesh.context_parallel_shard": 2,
                                                                "model_provider.model.layer.num_attention_heads": 3,
                                                                "model_provider.model.layer.num_key_value_heads": 3}),
    }


def adapter_rows():
    adapters, injects = "model_provider.adapters", "tests/peft/inject_test.cpp"
    scales, oracle = "Scale_as_peft_does", "tests/oracle/dora_parity_test.cpp"
    return {
        adapters: tests("tests/loop/run/pipeline_resume_test.cpp",
                        "With_adapters_saves_them_alone_and_continues_on_other_layouts"),
        f"{adapters}[lora].module_name_pattern": tests(injects, "Adds_adapters_as_children_and_freezes_all_else"),
        f"{adapters}[lora].params.r": tests(injects, "Adds_adapters_as_children_and_freezes_all_else"),
        f"{adapters}[lora].params.alpha": tests("tests/peft/config_test.cpp", scales),
        f"{adapters}[lora].params.use_rslora": tests("tests/peft/config_test.cpp", scales),
        f"{adapters}[lora].params.dropout": tests(injects, "Drops_what_A_reads_in_training_alone"),
        f"{adapters}[dora].module_name_pattern": tests(injects, "Adds_magnitudes_of_the_rows_of_linears"),
        f"{adapters}[dora].params.r": tests(oracle, "Of_output_loss_gradients_and_merged_output"),
        f"{adapters}[dora].params.alpha": tests(oracle, "Of_output_loss_gradients_and_merged_output"),
        f"{adapters}[dora].params.use_rslora": tests(oracle, "Of_output_loss_gradients_and_merged_output"),
        f"{adapters}[dora].params.dropout": tests(oracle, "Of_dropout"),
        f"{adapters}[full_tune].module_name_pattern": tests(
            injects, "Full_tune_leaves_the_bases_of_adapters_frozen_unless_they_are_named"),
        f"{adapters}[stack].methods": tests(injects, "Stacks_may_be_nested"),
        "model_provider.export.adapters": tests("tests/program/adapters_test.py",
                                                "test_every_layout_writes_the_bytes_that_its_checkpoint_gives"),
        "model_provider.export.dtype": Row("bfloat16", look=numbers),
        "trainer.model_stage_factory.source_adapters": Row("nowhere", look=refused("nowhere/adapter_config.json")),
    }


def trainer_rows():
    tracker, saving = "trainer.logging.tracker", "trainer.checkpointing"
    hangs = "test_a_rank_that_hangs_ends_the_job_in_time_and_is_named"
    graphs = "tests/loop/step/step_graphs_test.cpp"
    evaluation = "tests/loop/run/evaluation_test.cpp"
    helper = "tests/tracker/helper/helper_tracker_test.cpp"
    best_evaluation = "tests/loop/run/best_evaluation_test.cpp"
    spikes = "tests/loop/run/spikes_test.cpp"
    averages = "tests/loop/run/averaged_weights_test.cpp"
    averaged = {"trainer.ema": {"decay": 0.9}}
    evaluated = {"kind": "tokens", "path": "tokens.bin", "dtype": "uint8", "sequence_length": 32, "global_batch_size": 8,
                 "microbatch_size": 4, "num_workers": 0}
    rows = {
        "trainer.run.name": Row("another", look=log("training another:")),
        "trainer.run.description": Row("zebra", look=events(b"zebra")),
        "trainer.run.hparams": Row({"stripes": 17}, look=events(b"stripes")),
        "trainer.schedule.total_steps": Row(3, look=numbers),
        "trainer.data_prefetch.prefetch_factor": tests(
            "tests/data/pack/prefetched_packs_test.cpp", "Are_read_while_the_step_runs"),
        "trainer.logging.period_steps": Row(3, look=numbers),
        tracker: Row({"provider": "log"}, look=log("(stage=train): loss=")),
        f"{tracker}[jsonl].path": Row("b.jsonl", look=file("b.jsonl"),
                                      given={tracker: {"provider": "jsonl", "path": "a.jsonl"}}),
        f"{tracker}[tensorboard].log_dir": Row("new", look=lambda without, with_it: any(
            name.startswith("new/events") for name in with_it.files), given={
                tracker: {"provider": "tensorboard", "log_dir": "old"}}),
        f"{tracker}[aim]": tests(helper, "Hands_every_kind_of_value_to_aim"),
        f"{tracker}[wandb]": tests(helper, "Groups_values_by_step_for_wandb"),
        f"{tracker}[mlflow]": tests(helper, "Writes_scalars_texts_and_parameters_to_mlflow"),
        f"{tracker}[custom]": tests("tests/program/custom_model_test.py", "test_its_own_tracker_is_chosen_in_the_file"),
        f"{tracker}[multi].trackers": Row([{"provider": "jsonl", "path": "c.jsonl"}], look=file("c.jsonl")),
        "trainer.logging.max_pending_steps": tests("tests/loop/run/step_log_test.cpp",
                                                   "Lags_behind_as_many_steps_as_is_configured"),
        "trainer.logging.norms_by_layer": Row(2, look=numbers),
        "trainer.pipelining.schedule": Row({"schedule": "inference"}, look=unbuilt("trainer.pipelining.schedule")),
        "trainer.pipelining.messages": Row("copy_engine", look=refused("messages = copy_engine"), given={
            "mesh.pipeline_parallel": 2, "launch.ranks": "processes", "model_provider.model.num_hidden_layers": 2}),
        "trainer.model_stage_factory.source_checkpoint": Row(
            "nowhere", look=refused("nowhere")),
        "trainer.model_stage_factory.source_may_lack": tests(
            "tests/loop/job/model_builder_test.cpp", "Starts_a_new_head_on_a_published_backbone"),
        "model_provider.model": Row("from_checkpoint", look=refused("model_provider.model", "source_checkpoint")),
        "trainer.model_stage_factory.checkpoint_only_trainable_parameters": tests(
            "tests/loop/run/resume_test.cpp", "With_frozen_parameters_saves_the_others_alone"),
        "trainer.model_stage_factory.master_dtype": Row("float32", look=numbers, given={"model_provider.dtype": "bfloat16"}),
        "trainer.determinism.base_seed": Row(7, look=numbers),
        "trainer.detect_non_finite": tests("tests/loop/run/trainer_test.cpp", "Names_the_first_module_that_is_not_finite"),
        "trainer.refuse_equal_data": tests("tests/loop/checks/first_step_checks_test.cpp", "Is_accepted_where_it_is_meant"),
        "trainer.gc.period_steps": tests("tests/loop/run/logging_test.cpp",
                                         "Goes_back_to_the_system_at_the_period_of_gc"),
        f"{saving}.save_dir": Row("kept", look=file("kept/save-4/manifest.json"), given={f"{saving}.period_steps": 2}),
        f"{saving}.period_steps": Row(2, look=file("checkpoints/save-2/manifest.json"), given={f"{saving}.save_dir": "checkpoints"}),
        f"{saving}.num_to_keep": tests("tests/loop/run/resume_test.cpp", "Saves_at_the_period_and_at_the_end_and_keeps_the_newest"),
        f"{saving}.on_failed_save": tests("tests/loop/run/resume_test.cpp", "Of_a_disk_that_is_full_stops_or_goes_on_as_asked"),
        "trainer.data_phase": tests("tests/loop/run/data_phase_test.cpp",
                                    "Trains_as_one_job_on_both_data_bit_for_bit_wherever_it_is_killed"),
        "trainer.exports": Row({"folder": "e", "period_steps": 2}, look=file("e/step-2/config.json")),
        "trainer.exports.folder": Row("f", look=file("f/step-2/config.json"),
                                      given={"trainer.exports": {"folder": "e", "period_steps": 2}}),
        "trainer.exports.period_steps": Row(3, look=file("e/step-3/config.json"),
                                            given={"trainer.exports": {"folder": "e", "period_steps": 2}}),
        "trainer.gradient_clipping.max_norm": Row(0.01, look=numbers),
        "trainer.gradient_clipping.log_total_steps": Row(2, look=numbers),
        "trainer.gradient_clipping.on_non_finite": tests("tests/loop/run/trainer_test.cpp",
                                                         "A_nan_is_skipped_if_asked_and_training_goes_on"),
        "trainer.gradient_clipping.spikes": tests(spikes, "Change_nothing_and_are_counted"),
        "trainer.gradient_clipping.spikes.num_deviations": tests(spikes, "Are_as_far_from_the_mean_as_is_configured"),
        "trainer.gradient_clipping.spikes.window_steps": tests(spikes, "Change_nothing_and_are_counted"),
        "trainer.gradient_clipping.spikes.on_spike": tests(spikes, "Stop_the_job_if_asked"),
        "trainer.gradient_clipping.max_skipped_in_a_row": tests(spikes, "In_a_row_end_the_job_at_the_limit"),
        "trainer.ema": Row({"decay": 0.9}, look=numbers),
        "trainer.ema.decay": Row(0.1, look=numbers, given=averaged),
        "trainer.ema.warmup": Row(True, look=numbers, given=averaged),
        "trainer.ema.start_step": Row(2, look=numbers, given=averaged),
        "trainer.ema.period_steps": Row(2, look=numbers, given=averaged),
        "trainer.ema.evaluate": tests(averages, "Are_evaluated_in_place_of_the_trained_ones_or_beside_them"),
        "trainer.ema.export": Row("trained", look=numbers, given=averaged),
        "trainer.evaluation": Row({"validation": {"period_steps": 2}}, look=log("evaluation 'validation' after step 2: loss"),
                                  given={"evaluation_data": {"validation": evaluated}}),
        "trainer.evaluation{}.period_steps": tests(evaluation, "Has_a_period_a_limit_and_a_last_step"),
        "trainer.evaluation{}.at_start": tests(evaluation, "Has_a_period_a_limit_and_a_last_step"),
        "trainer.evaluation{}.max_packs": tests(evaluation, "Has_a_period_a_limit_and_a_last_step"),
        "trainer.evaluation{}.best": tests(best_evaluation, "Is_saved_and_kept_until_a_better_one_comes"),
        "trainer.evaluation{}.best.metric": tests(best_evaluation, "Is_saved_and_kept_until_a_better_one_comes"),
        "trainer.evaluation{}.best.mode": tests(best_evaluation, "Is_saved_and_kept_until_a_better_one_comes"),
        "trainer.evaluation{}.best.export_to": tests(best_evaluation, "Is_exported_if_that_is_configured"),
        "evaluation_data": Row({"validation": evaluated}, look=log("trainer.evaluation.validation")),
        "trainer.profiling": Row({"traces_dir": "t", "period_steps": 3, "warmup_steps": 1, "active_steps": 1},
                                 look=file("t/steps-2-2/rank0.json")),
        "trainer.gradient_manager.grad_dtype": Row("bfloat16", look=numbers, given={"model_provider.dtype": "bfloat16"}),
        "trainer.gradient_manager.bucket_size_mb": tests(
            "tests/internals/grad_sync/bucketed_reduction_test.cpp", "Sums_over_microbatches_and_the_ranks_of_partial_axes"),
        "trainer.timeout.init_timeout": tests("tests/program/layouts_test.py", hangs),
        "trainer.timeout.step_timeout": tests("tests/program/layouts_test.py", hangs),
        "trainer.memory_budget": Row({"device": "8GiB"}, look=log("trainer.memory_budget: measured within")),
        "trainer.memory_budget.device": Row("1MiB", look=refused("memory_budget.device of at least"), given={
            "trainer.memory_budget": {"device": "8GiB"}}),
        "trainer.memory_budget.host": Row("1GiB", look=log("+ offload"), given={
            "trainer.memory_budget": {"device": "8GiB"}}),
        "trainer.cuda_graph": Row({}, look=refused("trainer.cuda_graph", "got cpu")),
        "trainer.cuda_graph.num_warm_up_steps": tests(
            graphs, "Runs_a_kind_as_usual_then_captures_it_and_replays_it"),
        "trainer.cuda_graph.max_graphs": tests(
            graphs, "Runs_other_shapes_and_host_values_as_usual_in_between"),
    }
    rows["trainer.profiling.memory_snapshots"] = Row(True, look=refused("profiling.memory_snapshots", "got cpu"), given={
        "trainer.profiling": {"traces_dir": "t", "period_steps": 3, "warmup_steps": 1, "active_steps": 1}})
    for name, test in (("traces_dir", "Need_a_folder_that_can_be_written"),
                       ("period_steps", "Are_of_the_last_steps_of_each_period_with_names"),
                       ("warmup_steps", "Of_a_run_that_ends_in_a_warm_up_or_a_recording_leave_the_profiler_to_the_next"),
                       ("active_steps", "Leave_out_modules_if_asked_and_cover_several_steps"),
                       ("with_stack", "Leave_out_modules_if_asked_and_cover_several_steps"),
                       ("record_shapes", "Have_the_shapes_of_inputs_if_asked"),
                       ("ranks", "Have_one_file_for_ranks_that_are_threads_by_the_first_that_records")):
        rows[f"trainer.profiling.{name}"] = tests("tests/loop/run/step_profiler_test.cpp", test)
    for name in ("[looped_bfs].num_stages_per_rank", "[1f1b].num_stages_per_rank", "[1f1b].zero_bubble"):
        rows[f"trainer.pipelining.schedule{name}"] = tests(
            "tests/loop/run/pipeline_training_test.cpp",
            "Each_schedule_on_one_two_and_four_ranks_trains_as_one_piece_does")
    rows["trainer.pipelining.schedule[1f1b].depth"] = tests(
        "tests/pipelining/schedules/pipeline_schedule_test.cpp", "Keeps_no_more_microbatches_than_its_bound")
    choice = "tests/loop/measure/auto_schedule_test.cpp"
    for name, test in (("schedules", "Is_among_the_schedules_that_the_configuration_names"),
                       ("max_stages_per_rank", "Is_among_the_schedules_that_the_configuration_names"),
                       ("max_bytes", "Takes_the_bound_of_the_device_unless_one_is_configured")):
        rows[f"trainer.pipelining.schedule[auto].{name}"] = tests(choice, test)
    rows["trainer.pipelining.schedule[auto].costs_file"] = tests(
        "tests/loop/run/auto_schedule_test.cpp", "Writes_costs_that_the_plot_reads")
    return rows


def optimizer_rows():
    rows = {}
    adam = {"lr": 1e-2, "betas": [0.5, 0.6], "eps": 1e-2, "weight_decay": 0.5}
    flags = {"amsgrad": True, "maximize": True}
    kinds = {"adamw": ({}, adam | flags),
             "stochastic_adamw": ({"state_dtype": "float32"}, adam | {"state_dtype": "bfloat16"}),
             "adam": ({}, adam | flags | {"decoupled_weight_decay": True}),
             "sgd": ({"momentum": 0.5}, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.5, "nesterov": True,
                                         "maximize": True}),
             "lion": ({}, {"lr": 1e-2, "betas": [0.1, 0.2], "weight_decay": 0.5}),
             "muon": ({"adamw": {"weight_decay": 0.5}}, {"lr": 1e-2, "weight_decay": 0.5, "momentum": 0.5, "nesterov": False,
                                                       "ns_coefficients": [2.0, -1.5, 0.5], "eps": 1.0, "ns_steps": 2,
                                                       "adjust_lr_fn": "match_rms_adamw", "products_dtype": "bfloat16"})}
    for name, (needed, others) in kinds.items():
        optimizer = {"name": name, "lr": 1e-3} | needed
        dtype = {"model_provider.dtype": "bfloat16" if name == "stochastic_adamw" else "float32"}
        for key, value in others.items():
            rows[f"optimizer[{name}].{key}"] = Row(value, look=numbers, given={"optimizer": optimizer} | dtype)
        decayed = {"optimizer": optimizer | {"lr": 1e-2, "weight_decay": 0.5}} | dtype
        rows[f"optimizer[{name}].decay_all"] = Row(False, look=numbers, given=decayed)
        group = {"name": "group", "parameters": ".*_proj\\.weight", "lr_factor": 0.5}
        rows[f"optimizer[{name}].groups"] = Row([group], look=numbers, given=decayed)
        grouped = {"optimizer": decayed["optimizer"] | {"groups": [group]}} | dtype
        of_group = {"parameters": ".*norm.*", "lr_factor": 2.0, "weight_decay": 0.1}
        of_group |= {"momentum": 0.9} if name == "sgd" else {"betas": [0.5, 0.6]}
        if name == "muon":
            of_group |= {"momentum": 0.5, "rule": "adamw"}
        for key, value in of_group.items():
            rows[f"optimizer[{name}].groups[].{key}"] = Row(value, look=numbers, given=grouped, at=f"optimizer.groups.0.{key}")
        if name == "muon":
            of_norms = {"optimizer": decayed["optimizer"] | {"groups": [group | {"parameters": ".*norm.*"}]}} | dtype
            rows["optimizer[muon].groups[].betas"] = Row([0.5, 0.6], look=numbers, given=of_norms, at="optimizer.groups.0.betas")
            for key, value in {"lr_factor": 0.5, "betas": [0.5, 0.6], "eps": 1e-2, "weight_decay": 0.0}.items():
                rows[f"optimizer[muon].adamw.{key}"] = Row(value, look=numbers, given=decayed, at=f"optimizer.adamw.{key}")
            rows["optimizer[muon].adamw"] = Row({"lr_factor": 0.5}, look=numbers, given=decayed, at="optimizer.adamw")
            rows["optimizer[muon].bucket_size_mb"] = tests(
                "tests/optim/muon_layout_test.cpp", "Steps_as_on_one_rank_on_every_layout")
        rows[f"optimizer[{name}].groups[].name"] = Row("projections", look=log("projections"), given=grouped,
                                                       at="optimizer.groups.0.name")
    return rows


def rows():
    model = "model_provider.model"
    stages, partition = "tests/models/decoder/decoder_stages_test.cpp", "Partition_the_state_and_start_from_the_values_of_the_whole"
    dataset = {"dataset": "d", "split": "s", "text_column": "t", "use_samples": 1, "shuffle_seed": 1, "tokenizer": "t",
               "num_proc": 1, "presort_buffer_size": 1, "global_batch_size": 8, "microbatch_size": 4, "num_workers": 0}
    tokens = {"kind": "tokens", "path": "tokens.bin", "dtype": "uint8", "sequence_length": 32, "global_batch_size": 8,
              "microbatch_size": 4, "num_workers": 0, "shuffle": True}
    no_sample = {"sample": None}  # it would need a tokenizer
    table = {
        "launch.device": Row("cuda", look=lambda without, with_it: "cuda" in with_it.error + with_it.log),
        "launch.ranks": tests("tests/program/layouts_test.py", "test_a_killed_rank_ends_the_job_and_is_named"),
        "launch.ranks_per_gpu": tests("tests/program/run_test.py", "test_ranks_that_share_a_gpu_train_as_one"),
        "launch.deterministic": tests("tests/program/learning_test.py", "test_a_deterministic_run_repeats_every_bit"),
        "launch.num_threads": Row(3, look="threads"),
        "launch.log_level": Row("error", look=less_log),
        "data": Row(dataset, look=refused("tokenizer", "'t'", "does not exist"), given=no_sample),
        "data[-]": tests("tests/data/reference_example_test.cpp", "Has_the_batches_of_the_reference_on_one_and_two_ranks"),
        "data[text].paths": Row(["other.txt"], look=numbers),
        "data[text].sequence_length": Row(16, look=numbers),
        "data[tokens].path": Row("other.txt", look=numbers, given=no_sample | {"data": tokens}),
        "data[tokens].dtype": Row("uint16", look=refused("tokens of 2 bytes"), given=no_sample | {"data": tokens}),
        f"{model}.num_hidden_layers": Row(2, look=numbers),
        f"{model}.rope_base": Row(100, look=numbers),
        f"{model}.max_position_ids": Row(16, look=refused("max_position_ids")),
        f"{model}.split_vocab_size": Row({"bytes": 300}, look=numbers),
        f"{model}.split_vocab_order": Row(["bytes", "none"], look=refused("none")),
        f"{model}.pipeline_num_virtual_layers_pre": tests(stages, partition),
        f"{model}.pipeline_num_virtual_layers_post": tests(stages, partition),
        f"{model}.tie_word_embeddings": Row(True, look=numbers),
        "model_provider.checkpointing": tests(
            "tests/models/decoder/checkpointing_memory_test.cpp",
            "Of_a_layer_is_what_its_backward_reads_without_and_its_input_with"),
        **{f"model_provider.checkpointing.{key}": tests("tests/models/decoder/activation_checkpointing_test.cpp", name)
           for key, name in (("recompute", "By_any_plans_changes_no_bit_of_the_gradients"),
                             ("offload", "By_any_plans_changes_no_bit_of_the_gradients"),
                             ("layers", "Of_the_first_layers_leaves_the_others"))},
        "model_provider.dtype": Row("bfloat16", look=numbers),
        "model_provider.initializer_range": Row(0.02, look=numbers),
        "model_provider.head.preset": Row("cce", look=numbers, given={  # large weights: peaked softmaxes, which are filtered
            "model_provider.initializer_range": 1.0, "model_provider.dtype": "bfloat16",
            f"{model}.split_vocab_size": {"bytes": 2048}}),
        "lr_scheduler": Row({"name": "piecewise", "scheduler": CURVE}, look=numbers),
        "lr_scheduler[piecewise].scheduler": Row(CURVE, look=numbers),
        "lr_scheduler[-]": Row(None, look=same_as("lr_scheduler", "scheduler")),
        "export_to": Row("elsewhere", look=file("elsewhere/model.safetensors")),
    }
    table |= {f"data[text].{name}": row for name, row in loader_rows().items()}
    for part in (data_rows, layer_rows, mesh_rows, fsdp_rows, adapter_rows, rope_rows, sample_rows, trainer_rows, optimizer_rows,
                 schedule_rows):
        table |= part()
    return table
